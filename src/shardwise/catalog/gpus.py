"""The catalogue of GPUs, and hardware as a user writes it: `4x RTX-6000-Ada`, `2 x 8x H100-SXM`, `cpu:4`."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from shardwise.catalog.prices import price_of, read_table
from shardwise.catalog.processors import cpu_cluster
from shardwise.catalog.rates import with_rates
from shardwise.errors import HardwareError, quoted
from shardwise.spec.cluster import Cluster, Gpu, Link, Node
from shardwise.units import MIB

MAX_GPUS = 100_000
MAX_CPU_PROCESSES = 1024

#: Held outside the allocator by one process: the CUDA context and the kernels of the libraries, 300 to 500 MB on recent
#: drivers, 0.8 GiB measured on an H100 (CUDA 13). Communicators come on top, and are the planner's to count.
CONTEXT_BYTES, _CONTEXT_BYTES_OF_HOPPER = 450 * MIB, 820 * MIB

#: Of the memory that NVIDIA's driver reports, what no process can take. PyTorch's messages print a "total capacity" of
#: 79.25 and 79.33 of 80.00 GiB for A100 and A800 (github.com/levihsu/OOTDiffusion issue 235, hahnyuan/PB-LLM issue 3),
#: 39.5 of 40 (TianheWu/CoSeR 10), 23.64 of 23.99 for RTX-4090 (ali-vilab/VGen 104), 31.37 of 31.84 for RTX-5090
#: (Wan-Video/Wan2.1 465), 15.61 of 15.99 for RTX-A4000 (DengKaiCQ/VGGT-Long 6), 23.53 of 24 for A30
#: (google/RB-Modulation 5): within 0.15 GiB of this rule.
_RESERVED_BYTES, _RESERVED_SHARE = 300 * MIB, 0.005

_HARDWARE = re.compile(
    r"(?:(?P<first>\d+)\s*[x×*]\s*)?(?:(?P<second>\d+)\s*[x×*]\s*)?(?P<name>[a-z][^×*]*|\d{3,}[a-z ]*)", re.IGNORECASE
)
_CPU = re.compile(r"cpu(?:\s*:\s*(\d+))?", re.IGNORECASE)
_USUAL_NODE = 8
_DEFAULT_NETWORK = "ethernet100"
#: Whose rates and links stand in for those of a GPU that the catalogue does not have.
_NOMINAL = "A100-PCIe-80GB"


@dataclass(frozen=True, kw_only=True)
class KnownGpu:
    """One entry of gpus.toml.

    Attributes:
        link: inside the usual node.
        network: between usual nodes.
        driver: the name the driver prints.
        node_gpus: GPUs of the usual node.
        names: every name it is found by, in normal form.
        source: the document its figures are from, with the vendor's page where there is one.
    """

    gpu: Gpu
    link: Link
    network: Link
    driver: str
    node_gpus: int
    names: frozenset[str]
    source: str


@cache
def _data() -> dict[str, Any]:
    return read_table("gpus")


@cache
def known_gpus() -> dict[str, KnownGpu]:
    """The catalogue, by name."""
    return {name: _entry(name, row) for name, row in _data()["gpus"].items()}


def _entry(name: str, row: dict[str, Any]) -> KnownGpu:
    plain = name.replace("-", " ")
    brand = "NVIDIA GeForce" if re.match(r"RTX [345]0", plain) else "NVIDIA"
    driver = row.get("driver", f"{brand} {plain}")
    peaks = {
        kind: row[f"{kind}_tflops"] * 1e12 for kind in ("float32", "bfloat16", "float16") if f"{kind}_tflops" in row
    }
    price = price_of(name)
    gpu = Gpu(
        name=name,
        memory_bytes=row["memory_mib"] * MIB,
        reserved_bytes=0 if name.startswith("MI") else reserved_bytes(row["memory_mib"] * MIB),
        dense_flops=peaks,
        memory_bytes_per_second=row["gigabytes_per_second"] * 1e9,
        host_bytes_per_second=_link("links", row.get("host", row["link"])).bytes_per_second,
        context_bytes=_CONTEXT_BYTES_OF_HOPPER if name.startswith(("H", "GH", "B", "GB")) else CONTEXT_BYTES,
        usd_per_hour=(price.lowest, price.highest) if price else None,
        typical_usd_per_hour=price.typical if price else None,
        capability=_capability(row),
    )
    return KnownGpu(
        gpu=gpu,
        link=_link("links", row["link"]),
        network=_link("networks", row.get("network", _DEFAULT_NETWORK)),
        driver=driver,
        node_gpus=row.get("node", _USUAL_NODE),
        names=frozenset(_normal(n) for n in (name, driver, *row.get("aliases", ()))),
        source=f"{row['source']}, {row['url']}" if "url" in row else row["source"],
    )


def _capability(row: dict[str, Any]) -> tuple[int, int] | None:
    major, _, minor = row.get("capability", "").partition(".")
    return (int(major), int(minor)) if major else None


def reserved_bytes(memory_bytes: int) -> int:
    """Of an NVIDIA GPU's memory, what its driver keeps."""
    return _RESERVED_BYTES + int(memory_bytes * _RESERVED_SHARE)


def _link(table: str, name: str) -> Link:
    row = _data()[table][name]
    bandwidth, latency = row["gigabytes_per_second"] * 1e9, row["latency_us"] * 1e-6
    shared = bool(row.get("shared", False))
    return Link(name=name, bytes_per_second=bandwidth, latency_seconds=latency, shared=shared)


def _normal(name: str) -> str:
    """A name without case, spaces, hyphens and vendor."""
    squeezed = re.sub(r"[\s_\-]+", "", name.lower())
    return re.sub(r"^(nvidia|amd|tesla|geforce|instinct|quadro)+", "", squeezed)


def find_gpu(name: str) -> KnownGpu:
    """The catalogue entry a user's or a driver's name means; case, spaces and hyphens do not matter. Raises
    HardwareError: no entry has that name; the message gives the nearest."""
    wanted = _normal(name)
    for known in known_gpus().values():
        if wanted in known.names:
            return known
    raise HardwareError(
        f"hardware names the GPU {quoted(name.strip())}, which is not in the catalogue{_nearest(wanted)}"
    )


def nominal_gpu(name: str) -> KnownGpu:
    """An entry for a GPU that the catalogue does not have: its rates are another's, its price is not known, and its
    memory is to be set to what the driver reports."""
    like = known_gpus()[_NOMINAL]
    plain = re.sub(r"^NVIDIA\s+", "", name)
    gpu = replace(like.gpu, name=plain, usd_per_hour=None)
    return replace(like, gpu=gpu, driver=name, names=frozenset({_normal(name)}), source="the driver")


def _nearest(wanted: str) -> str:
    names = {alias: known.gpu.name for known in known_gpus().values() for alias in known.names}
    close = [names[alias] for alias in difflib.get_close_matches(wanted, names, n=6, cutoff=0.5)]
    contains = [name for alias, name in names.items() if wanted and (wanted in alias or alias in wanted)]
    near = list(dict.fromkeys(contains + close))[:3]
    if near:
        return f"; nearest: {', '.join(near)}"
    return "; none there has a name like it, see `shardwise plan --list gpus`"


def parse_hardware(text: str) -> Cluster:
    """`[NODES x] GPUS x NAME`, `NAME` alone (one GPU), or `cpu:N` for N processes on this machine. Raises
    HardwareError: the text has another form, names an unknown GPU, or asks for an impossible number of them."""
    cpu = _CPU.fullmatch(text.strip())
    if cpu is not None:
        processes = _count(cpu.group(1) or "1", text)
        if processes > MAX_CPU_PROCESSES:
            raise HardwareError(
                f"hardware is {quoted(text)}; at most {MAX_CPU_PROCESSES} CPU processes can be planned for"
            )
        return with_rates(cpu_cluster(num_processes=processes))
    if text.strip().lower() == "any" or "," in text:
        raise HardwareError(
            f"hardware is {text!r}, which leaves it open, which only `plan` answers; leave hardware out to use this "
            "machine, or name one"
        )
    match = _HARDWARE.fullmatch(text.strip())
    if match is None:
        raise HardwareError(
            f"hardware is {quoted(text)}; expected [NODES x] GPUS x NAME such as '4x RTX-6000-Ada' or "
            "'2 x 8x H100-SXM', or cpu:N"
        )
    counts = [_count(n, text) for n in match.group("first", "second") if n]
    num_nodes, num_gpus = (counts[0], counts[1]) if len(counts) == 2 else (1, counts[0] if counts else 1)
    known = find_gpu(match.group("name"))
    if num_nodes * num_gpus > MAX_GPUS:
        raise HardwareError(
            f"hardware is {quoted(text)}: {num_nodes * num_gpus} GPUs; at most {MAX_GPUS} can be planned for"
        )
    return cluster_of(known, num_gpus=num_gpus, num_nodes=num_nodes)


def cluster_of(known: KnownGpu, *, num_gpus: int, num_nodes: int = 1) -> Cluster:
    """Equal nodes of one catalogue GPU, with its usual links."""
    network = known.network if num_nodes > 1 else None
    return Cluster(node=Node(gpu=known.gpu, num_gpus=num_gpus, link=known.link), num_nodes=num_nodes, network=network)


def _count(digits: str, text: str) -> int:
    count = int(digits[:9])
    if count < 1 or len(digits) > 9:
        raise HardwareError(
            f"hardware is {quoted(text)}; a number of nodes, GPUs or processes is at least 1 and below 10^9"
        )
    return count
