"""What `shardwise probe` measured here, and a cluster with these rates."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shardwise.catalog.devices import cpu_model, usable_cores
from shardwise.spec.cluster import Cluster, Gpu, Link
from shardwise.spec.job.strict import from_plain
from shardwise.spec.run import cache_root, read_json, write_json

VERSION = 4

_SIZES = {"vocab_size": 4096, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4}
#: The model whose steps are timed on CPU processes, as its configuration, and how long its rows
#: are; each of the rows of a step is a micro-batch.
SAMPLE: dict[str, Any] = {"model_type": "llama", **_SIZES, "num_attention_heads": 8, "num_key_value_heads": 4}
SAMPLE_LENGTH, SAMPLE_ROWS = 128, 4

#: Bytes that each rank writes to measure the disk.
WRITTEN = 2**26


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a rank reaches with `ranks` at work at once.

    Attributes:
        processor, cores, gpu: the machine; `gpu` is its GPUs' name, empty where ranks are CPU
            processes.
        product_flops: FLOP/s of matrix products, by type and by `m x k x n`.
        attention_seconds: of causal attention by type, pass (`forward`, `backward`) and FLOPs of
            its forward, over the scores that count.
        memory_bytes_per_second: read and written.
        operator_seconds: of the host, for a small operator.
        message_seconds: of an all-reduce, a gather, a reduce-scatter (`scatter`), a `message` to a
            neighbour, and of ZeRO-1's `exchange` of new weights, by their bytes; empty where there
            was one rank.
        disk_bytes_per_second: written and synced.
        host_to_device_bytes_per_second: from page-locked memory; 0 on a CPU.
        step_over_rates: seconds of a step of the sample model, of what the rates above make of it,
            by the type that it computes in: caches are cold in a step, and cores are shared. Empty
            on GPUs.
        alone_over_rates: the same of a step on all cores, beyond that: threads wait for each other.
            1 with one rank.
        unit_seconds: of FSDP around one unit, forward and backward, beyond its messages and copies:
            what a step of the sample model takes longer over all ranks than these rates make of it.
            0 on GPUs, and with one rank.
        share_of_cores: that CPU processes had of their cores, as the mean of ranks; the rest went
            to other programs.
    """

    version: int
    processor: str
    cores: int
    gpu: str
    ranks: int
    product_flops: dict[str, dict[str, float]]
    attention_seconds: dict[str, dict[str, dict[str, float]]]
    memory_bytes_per_second: float
    operator_seconds: float
    message_seconds: dict[str, dict[str, float]]
    disk_bytes_per_second: float
    host_to_device_bytes_per_second: float
    step_over_rates: dict[str, float] = field(default_factory=dict[str, float])
    alone_over_rates: float = 1.0
    unit_seconds: float = 0.0
    share_of_cores: float = 1.0

    def best_flops(self) -> dict[str, float]:
        """FLOP/s of the best product by type."""
        return {kind: max(by_shape.values()) for kind, by_shape in self.product_flops.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain data, for the hardware file."""
        return asdict(self)


def hardware_file() -> Path:
    """Where `probe` writes, and `plan` and `train` read."""
    return cache_root() / "hardware.json"


def write_rates(rates: Rates) -> Path:
    """Writes the hardware file, and returns its place."""
    hardware_file().parent.mkdir(parents=True, exist_ok=True)
    write_json(hardware_file(), rates.to_json())
    return hardware_file()


def read_rates(*, gpu: str = "") -> Rates | None:
    """What was measured on this machine with GPUs of a name, or with CPU processes; None where
    nothing was, or on another machine or by another version."""
    data = read_json(hardware_file())
    if not isinstance(data, dict) or data.get("version") != VERSION:
        return None
    try:
        rates = from_plain(Rates, data)
    except (TypeError, ValueError):
        return None
    here = (cpu_model(), usable_cores(), gpu)
    return rates if (rates.processor, rates.cores, rates.gpu) == here else None


def with_rates(cluster: Cluster) -> Cluster:
    """A cluster of this machine with the rates measured on it, or as it is where none were."""
    rates = read_rates(gpu="" if cluster.gpu.kind == "cpu" else cluster.gpu.name)
    return cluster if rates is None else rated(cluster, rates)


def rated(cluster: Cluster, rates: Rates) -> Cluster:
    """A cluster with rates that were measured on such a machine."""
    node = cluster.node
    is_cpu = cluster.gpu.kind == "cpu"
    gpu = _processor(node.gpu, rates, processes=node.num_gpus) if is_cpu else _device(node.gpu, rates)
    return replace(cluster, node=replace(node, gpu=gpu, link=_link(node.link, rates)))


def _processor(gpu: Gpu, rates: Rates, *, processes: int) -> Gpu:
    """A CPU process among so many: cores and the memory's bandwidth are shared between them."""
    share = rates.ranks / processes
    alone = rates.alone_over_rates if share > 1 else 1.0
    return replace(
        gpu,
        measured=True,
        dense_flops={kind: rate * share for kind, rate in rates.best_flops().items()},
        attention_seconds={
            kind: {way: {flops: one / share for flops, one in by_flops.items()} for way, by_flops in ways.items()}
            for kind, ways in rates.attention_seconds.items()
        },
        memory_bytes_per_second=rates.memory_bytes_per_second * share,
        operator_seconds=rates.operator_seconds,
        unit_seconds=rates.unit_seconds,
        step_over_rates={kind: alone * over for kind, over in rates.step_over_rates.items()},
        alone_over_rates=rates.alone_over_rates / alone,
    )


def _device(gpu: Gpu, rates: Rates) -> Gpu:
    """A GPU: its peak, which MFU is counted by, stays the catalogue's."""
    return replace(
        gpu,
        measured=True,
        product_flops=rates.best_flops(),
        attention_seconds=rates.attention_seconds,
        memory_bytes_per_second=rates.memory_bytes_per_second,
        host_bytes_per_second=rates.host_to_device_bytes_per_second or gpu.host_bytes_per_second,
        operator_seconds=rates.operator_seconds,
    )


def _link(link: Link, rates: Rates) -> Link:
    """The link with the messages that were measured; its rate and latency are those of a ring's
    all-reduce: twice each hop's latency, and twice the bytes that pass each rank over the rate."""
    if rates.ranks == 1 or not rates.message_seconds:
        return link
    every = sorted((int(size), seconds) for size, seconds in rates.message_seconds["all_reduce"].items())
    (small, fast), (large, slow) = every[0], every[-1]
    hops = rates.ranks - 1
    passing = 2 * hops / rates.ranks * (large - small)
    return replace(
        link,
        measured=True,
        bytes_per_second=passing / max(slow - fast, 1e-9),
        latency_seconds=fast / (2 * hops),
        ranks=rates.ranks,
        message_seconds=rates.message_seconds,
    )
