"""The catalogue of GPUs, and hardware as a user writes it: `4x RTX-6000-Ada`, `cpu:4`."""

import difflib
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from shardwise.catalog.devices import cpu_cluster
from shardwise.catalog.prices import price_of, read_table
from shardwise.catalog.rates import with_rates
from shardwise.errors import HardwareError, quoted
from shardwise.spec.cluster import Cluster, Gpu, Link, Node
from shardwise.units import GIB, MIB

MAX_GPUS = 100_000
MAX_CPU_PROCESSES = 1024
MAX_GIGABITS = 100_000

#: Held outside the allocator by one process: the CUDA context and the kernels of the libraries, 300
#: to 500 MB on recent drivers, 0.8 GiB measured on an H100 (CUDA 13). Communicators come on top,
#: and are the planner's to count.
CONTEXT_BYTES, _CONTEXT_BYTES_OF_HOPPER = 450 * MIB, 820 * MIB

#: Of the memory that NVIDIA's driver reports, what no process can take, at least: PyTorch's
#: messages of too little memory print a "total capacity" that is 380 MiB and 0.6 % below it or
#: more, on every card whose public logs were read. The lowest of those stands in the catalogue
#: (`usable_gib`).
_RESERVED_BYTES, _RESERVED_SHARE = 380 * MIB, 0.006

_HARDWARE = re.compile(
    r"(?:(?P<first>\d+)(?: ?nodes?)?\s*[x×*]\s*)?(?:(?P<second>\d+)(?:\s*[x×*]\s*|(?<!\d{4})\s+(?=[a-wyz])))?"
    r"(?P<name>[a-z][^×*@]*|\d{3,}[a-z ]*(?:\s\d+ ?gb)?)",
    re.IGNORECASE,
)
#: `H100 x8`: the number behind the name.
_BEHIND = re.compile(r"^((?:[a-z]|\d{3}).*?)\s*[x×*]\s*(\d{1,2})$", re.IGNORECASE)
#: The link between machines, as it is stated: of each machine, which its GPUs share.
_STATED_LINK = re.compile(r"(.*?)\s*@\s*(\d+(?:\.\d+)?)\s*(Gb/s|Gbps|Gbit/s|GB/s)\s*", re.IGNORECASE)
#: What may stand before a GPU's number and be left out.
_SERIES = ("rtx", "quadrortx")
#: GPUs that switches join on boards come by so many; more are another machine's, but for Google's
#: a2-megagpu-16g.
_MOST_ON_BOARDS, _SOLD_BY_16 = 8, "A100-40GB"
_NOT_TRIED = "AMD GPUs are planned for, and nothing was tried on ROCm"
_APPLE = re.compile(r"(apple|mac|mps|m[1-5](?!\d))", re.IGNORECASE)
#: `L40S 48GB`: a name with the memory that is printed on the card.
_SIZED = re.compile(r"(.*\S)\s+(\d+)\s*gi?b", re.IGNORECASE)
#: `24 GB`, `2x 24GB`: memory in place of a name.
_MEMORY = re.compile(r"(?:.*[x×*])?\s*(\d{1,3})\s*gi?b?(?:\s*(?:gpu|card|vram)s?)?", re.IGNORECASE)
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
def known_gpus() -> dict[str, KnownGpu]:
    """The catalogue, by name."""
    return {name: _entry(name, row) for name, row in read_table("gpus")["gpus"].items()}


def _entry(name: str, row: dict[str, Any]) -> KnownGpu:
    plain = name.replace("-", " ")
    brand = "NVIDIA GeForce" if re.match(r"RTX [345]0", plain) else "NVIDIA"
    driver = row.get("driver", f"{brand} {plain}")
    kinds = ("float32", "bfloat16", "float16")
    peaks = {kind: row[f"{kind}_tflops"] * 1e12 for kind in kinds if f"{kind}_tflops" in row}
    price, memory = price_of(name), row["memory_mib"] * MIB
    kept = 0 if name.startswith("MI") else reserved_bytes(memory)
    gpu = Gpu(
        name=name,
        memory_bytes=memory,
        reserved_bytes=memory - int(row["usable_gib"] * GIB) if "usable_gib" in row else kept,
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
    """Of an NVIDIA GPU's memory, what its driver keeps at least."""
    return _RESERVED_BYTES + int(memory_bytes * _RESERVED_SHARE)


def _link(table: str, name: str) -> Link:
    row = read_table("gpus")[table][name]
    bandwidth, latency = row["gigabytes_per_second"] * 1e9, row["latency_us"] * 1e-6
    return Link(name=name, bytes_per_second=bandwidth, latency_seconds=latency, shared=row.get("shared", False))


def _normal(name: str) -> str:
    return re.sub(r"^(nvidia|amd|tesla|geforce|instinct|quadro)+", "", re.sub(r"[\s_\-]+", "", name.lower()))


def find_gpu(name: str) -> KnownGpu:
    """The catalogue entry a user's or a driver's name means; case, spaces and hyphens do not
    matter. Raises HardwareError: no entry has that name; the message gives the nearest."""
    wanted = _normal(name)
    if exact := next((known for known in known_gpus().values() if wanted in known.names), None):
        return exact
    meant = [known for known in known_gpus().values() if any(series + wanted in known.names for series in _SERIES)]
    if len(meant) == 1 and wanted[:1].isdigit():
        return meant[0]
    sized = _SIZED.fullmatch(name.strip())
    if sized and 0.9 < int(sized[2]) / ((plain := find_gpu(sized[1])).gpu.memory_bytes / GIB) < 1.1:
        return plain
    if _APPLE.match(wanted):
        raise HardwareError(
            f"hardware names {quoted(name.strip())}, and nothing is planned for or trained on Apple's GPUs; name "
            "NVIDIA's, such as '1x RTX-4090', or what there is to rent (any), or processors (cpu:1)"
        )
    raise HardwareError(
        f"hardware names the GPU {quoted(name.strip())}, which is not in the catalogue{_nearest(wanted)}"
    )


def nominal_gpu(name: str) -> KnownGpu:
    """An entry for a GPU that the catalogue does not have: its rates are another's, its price is
    not known, and its memory is to be set to what the driver reports."""
    like = known_gpus()[_NOMINAL]
    gpu = replace(like.gpu, name=re.sub(r"^NVIDIA\s+", "", name), usd_per_hour=None)
    return replace(like, gpu=gpu, driver=name, names=frozenset({_normal(name)}), source="the driver")


def _nearest(wanted: str) -> str:
    names = {alias: known.gpu.name for known in known_gpus().values() for alias in known.names}
    close = [names[alias] for alias in difflib.get_close_matches(wanted, names, n=6, cutoff=0.5)]
    contains = [name for alias, name in names.items() if wanted and (wanted in alias or alias in wanted)]
    near = list(dict.fromkeys(contains + close))[:3]
    return f"; nearest: {', '.join(near)}" if near else "; none has a name like it, see `shardwise plan --list gpus`"


def _with_memory(gigabytes: int) -> str:
    names = [name for name, known in known_gpus().items() if round(known.gpu.memory_bytes / GIB) == gigabytes]
    return f"; {gigabytes} GB have {', '.join(names)}" if names else ""


def parse_hardware(text: str) -> Cluster:
    """`[NODES x] GPUS x NAME`, `NAME` alone (one GPU), or `cpu:N` for N processes on this machine;
    `@ 100 Gb/s` behind several machines states the port of each. Raises HardwareError: the text has
    another form, or names an unknown GPU, an impossible number or a machine that is not sold."""
    said = f"hardware is {quoted(text)}"
    if (cpu := _CPU.fullmatch(text.strip())) is not None:
        processes = _count(cpu.group(1) or "1", text)
        if processes > MAX_CPU_PROCESSES:
            raise HardwareError(f"{said}; at most {MAX_CPU_PROCESSES} CPU processes can be planned for")
        return with_rates(cpu_cluster(num_processes=processes))
    if text.strip().lower() == "any" or "," in text:
        raise HardwareError(
            f"hardware is {text!r}, which leaves it open, which only `plan` answers; leave hardware out to use this "
            "machine, or name one"
        )
    if memory := _MEMORY.fullmatch(text.strip()):
        which = f"which is memory and not the name of a GPU{_with_memory(int(memory.group(1)))}"
        raise HardwareError(f"{said}, {which}; name one, such as '1x RTX-4090', or let all be compared: any")
    stated = _STATED_LINK.fullmatch(text)
    match = _HARDWARE.fullmatch(_BEHIND.sub(r"\2x \1", (stated.group(1) if stated else text).strip()))
    if match is None:
        raise HardwareError(
            f"{said}; expected [NODES x] GPUS x NAME such as '4x RTX-6000-Ada', '2 x 8x H100-SXM' or "
            "'2 x 8x H100-SXM @ 400 Gb/s', or cpu:N"
        )
    counts = [_count(n, text) for n in match.group("first", "second") if n]
    num_nodes, num_gpus = (counts[0], counts[1]) if len(counts) == 2 else (1, counts[0] if counts else 1)
    known = find_gpu(match.group("name"))
    if num_nodes * num_gpus > MAX_GPUS:
        raise HardwareError(f"{said}: {num_nodes * num_gpus} GPUs; at most {MAX_GPUS} can be planned for")
    if len(counts) < 2:
        _refuse_unsold(known, num_gpus, text)
    cluster = cluster_of(known, num_gpus=num_gpus, num_nodes=num_nodes)
    notes = (_NOT_TRIED,) if known.gpu.name.startswith("MI") else ()
    if stated is not None:
        network = _stated_link(cluster, rate=stated.group(2), unit=stated.group(3), text=text)
        return replace(cluster, network=network, notes=notes)
    return replace(cluster, notes=notes if cluster.network is None else (*notes, _assumed(cluster.network)))


def _refuse_unsold(known: KnownGpu, num_gpus: int, text: str) -> None:
    """Refuses one machine with more GPUs than it is sold with, unless its number is stated."""
    name = known.gpu.name
    most = 2 * _MOST_ON_BOARDS if name == _SOLD_BY_16 else max(_MOST_ON_BOARDS, known.node_gpus)
    if num_gpus <= most or known.link.name.startswith("pcie"):
        return
    size = next((size for size in range(known.node_gpus, 0, -1) if num_gpus % size == 0), 1)
    raise HardwareError(
        f"hardware is {quoted(text)}, and a machine has at most {most} {name}; write '{num_gpus // size} x {size}x "
        f"{name}' for {num_gpus // size} machines, or '1 x {num_gpus}x {name}' if one machine is what you mean"
    )


def _stated_link(cluster: Cluster, *, rate: str, unit: str, text: str) -> Link:
    if cluster.network is None:
        raise HardwareError(
            f"hardware is {quoted(text)}, which is one machine, and {rate} {unit} is a link between machines; leave it "
            "out, or write '2 x 8x ...'"
        )
    gigabits = float(rate) * (8 if "B" in unit else 1)
    if not 0 < gigabits <= MAX_GIGABITS:
        raise HardwareError(f"hardware is {quoted(text)}; a link carries above 0 and at most {MAX_GIGABITS} Gb/s")
    return replace(cluster.network, name=f"{gigabits:g} Gb/s", bytes_per_second=gigabits / 8 * 1e9, shared=True)


def _assumed(network: Link) -> str:
    gigabits = network.bytes_per_second * 8 / 1e9
    each = "machine" if network.shared else "GPU"
    return (
        f"{gigabits:g} Gb/s for each {each} are assumed between machines; state what a machine has behind hardware, "
        "such as @ 100 Gb/s"
    )


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
