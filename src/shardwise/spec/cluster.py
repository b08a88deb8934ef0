"""Gpu, Link, Node, Cluster: the machines a plan is made for."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

from shardwise.spec.job.strict import from_plain

DeviceKind = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A connection, as the alpha-beta model sees it.

    Attributes:
        bytes_per_second: what one GPU can send in one direction.
        latency_seconds: fixed cost of one message.
        shared: it is the one port of a node, which all its GPUs share; otherwise each GPU has its
            own.
        measured: the rate is what collectives reached on this machine, not a link's nominal one.
        ranks: that were at work when it was measured.
        message_seconds: measured, of `all_reduce`, `gather`, `scatter`, `exchange`, `message` by
            bytes.
    """

    name: str
    bytes_per_second: float
    latency_seconds: float
    shared: bool = False
    measured: bool = False
    ranks: int = 0
    message_seconds: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]], hash=False)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator (or one CPU process that stands in for it).

    Attributes:
        memory_bytes: capacity as the driver reports it.
        reserved_bytes: what of that a job cannot take: the driver's own, and what other processes
            hold.
        dense_flops: peak FLOP/s without sparsity, by compute type: `float32`, `bfloat16`,
            `float16`.
        capability: NVIDIA's compute capability, (major, minor); None of other devices.
        memory_bytes_per_second: bandwidth of the device memory.
        host_bytes_per_second: to or from the host's memory, one direction; of PCI Express 4.0 where
            nothing is said.
        context_bytes: held outside the allocator by the driver and libraries.
        usd_per_hour: (lowest, highest) rental price, or None where none is known.
        typical_usd_per_hour: the median over providers, which costs are forecast at; None where it
            is not known.
        measured: rates were measured on this machine, not read from a catalogue.
        product_flops: of the best products that were measured, by type, where `dense_flops` is the
            catalogue's peak.
        attention_seconds: measured, causal, by type, `forward` or `backward`, and FLOPs in forward.
        operator_seconds: of the host, for a small operator, where it was measured; 0 where not.
        unit_seconds: of FSDP around one unit on CPU processes, where it was measured; 0 where not.
        step_over_rates: times as long a step takes on a CPU process as its rates make of it, by
            type, where it was measured.
        alone_over_rates: times as long again where a process has several processes' cores.
    """

    name: str
    kind: DeviceKind = "cuda"
    memory_bytes: int
    dense_flops: dict[str, float]
    memory_bytes_per_second: float
    host_bytes_per_second: float = 31.5e9
    context_bytes: int = 0
    usd_per_hour: tuple[float, float] | None = None
    typical_usd_per_hour: float | None = None
    measured: bool = False
    reserved_bytes: int = 0
    product_flops: dict[str, float] = field(default_factory=dict[str, float])
    attention_seconds: dict[str, dict[str, dict[str, float]]] = field(
        default_factory=dict[str, dict[str, dict[str, float]]]
    )
    operator_seconds: float = 0.0
    unit_seconds: float = 0.0
    step_over_rates: dict[str, float] = field(default_factory=dict[str, float])
    alone_over_rates: float = 1.0
    capability: tuple[int, int] | None = None

    @property
    def usable_bytes(self) -> int:
        """What processes can take, their contexts included."""
        return self.memory_bytes - self.reserved_bytes


@dataclass(frozen=True, kw_only=True)
class Node:
    """GPUs that share a machine and the link between them."""

    gpu: Gpu
    num_gpus: int
    link: Link


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Equal nodes and their network. `notes`: to be said beside a plan for it, as sentences."""

    node: Node
    num_nodes: int = 1
    network: Link | None = None
    notes: tuple[str, ...] = ()

    @property
    def gpu(self) -> Gpu:
        """The one kind of GPU of the cluster."""
        return self.node.gpu

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.num_nodes * self.node.num_gpus

    @property
    def unit(self) -> str:
        """What one of them is called, in the plural."""
        return "processes" if self.gpu.kind == "cpu" else "GPUs"

    @property
    def name(self) -> str:
        """As a user writes it: `4x RTX-6000-Ada`, `2 x 8x H100-SXM`, `cpu:2`."""
        if self.gpu.kind == "cpu":
            return f"cpu:{self.num_gpus}"
        inside = f"{self.node.num_gpus}x {self.gpu.name}"
        link = f" @ {self.network.name}" if self.network and self.network.name.endswith(" Gb/s") else ""
        return inside if self.num_nodes == 1 else f"{self.num_nodes} x {inside}{link}"

    def to_json(self) -> dict[str, Any]:
        """Plain data for plan.json; `notes` where there are any."""
        plain = asdict(self)
        notes = list(plain.pop("notes"))
        return {"name": self.name, "num_gpus": self.num_gpus, **plain, **({"notes": notes} if notes else {})}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The cluster of a plan's `hardware`. Raises TypeError: by hand or by another version."""
        return from_plain(cls, data)

    def part(self, num_gpus: int) -> Self:
        """The cluster with only `num_gpus` GPUs: part of one node, or whole nodes."""
        if num_gpus <= self.node.num_gpus:
            return replace(self, node=replace(self.node, num_gpus=num_gpus), num_nodes=1, network=None)
        return replace(self, num_nodes=-(-num_gpus // self.node.num_gpus))
