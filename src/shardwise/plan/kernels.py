"""Seconds of single pieces of work on one GPU: matrix products by shape, memory-bound operators by bytes, collectives
by an alpha-beta model. The constants are uncalibrated and stated here, in one place; measurement replaces them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.spec.cluster import Cluster, Gpu, Link
from shardwise.spec.layout import Layout

#: Share of the dense peak that large, well-shaped products reach.
_CEILING = {"cuda": 0.75, "cpu": 1.0}
#: A dim of this size halves the efficiency: tiles are filled badly and the pipeline is short.
_HALF_SIZE = {"cuda": 96, "cpu": 8}
#: Attention's two products, in one kernel with a softmax between, reach less than plain ones.
ATTENTION_SHARE = 0.6
_BANDWIDTH_SHARE = 0.8
_LINK_SHARE = 0.75
#: FSDP2's hooks around one unit: the host's time, and passes over the unit's bytes to copy it out of the gathered
#: buffer, or its gradients into the one to be reduced.
HOST_SECONDS_PER_UNIT = 250e-6
COPY_PASSES = 2
#: A collective takes multiprocessors and bandwidth from what computes beside it: this share of its own time.
CONTENTION = 0.1
#: The host's time to launch one operator of eager PyTorch, through autograd and Python.
HOST_SECONDS_PER_OPERATOR = 8e-6


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU and the type it computes in."""

    gpu: Gpu
    compute: str
    element_bytes: int

    @property
    def peak(self) -> float:
        """Dense FLOP/s; a type the GPU has no units for runs at float32's rate."""
        return self.gpu.dense_flops.get(self.compute, self.gpu.dense_flops["float32"])

    def product(self, m: int, n: int, k: int) -> float:
        """Seconds of an (m x k) times (k x n) product: by its FLOPs or by its bytes, whichever takes longer."""
        half = _HALF_SIZE[self.gpu.kind]
        efficiency = _CEILING[self.gpu.kind] * m / (m + half) * n / (n + half) * k / (k + half)
        flops = 2.0 * m * n * k / (self.peak * efficiency)
        return max(flops, self.bytes_moved(self.element_bytes * (m * k + k * n + m * n)))

    def attention(self, flops: float) -> float:
        """Seconds of so many FLOPs of attention."""
        return flops / (self.peak * _CEILING[self.gpu.kind] * ATTENTION_SHARE)

    def bytes_moved(self, count: float) -> float:
        """Seconds of operators that only move so many bytes."""
        return count / (self.gpu.memory_bytes_per_second * _BANDWIDTH_SHARE)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that talk in collectives, over their slowest link.

    The formulas are those of ring algorithms (Thakur et al., 2005): n - 1 messages of a share each.
    """

    size: int
    link: Link

    def gather(self, count: float) -> float:
        """Seconds until every rank has all `count` bytes, of which each held a share; as long as a reduce-scatter."""
        if self.size == 1:
            return 0.0
        share = (self.size - 1) / self.size
        return share * count / (self.link.bytes_per_second * _LINK_SHARE) + (self.size - 1) * self.link.latency_seconds

    def all_reduce(self, count: float) -> float:
        """Seconds until every rank has the sum of `count` bytes: a reduce-scatter and a gather."""
        return 2 * self.gather(count)


def group_of(cluster: Cluster, layout: Layout, axis: str) -> Group:
    """The ranks along one axis; neighbours on inner axes share a node first."""
    inner = 1
    for name in ("tp", "cp", "dp_shard", "dp_replicate", "pp"):
        if name == axis:
            break
        inner *= getattr(layout, name)
    size = getattr(layout, axis)
    node, network = cluster.node, cluster.network
    if size == 1 or network is None or inner * size <= node.num_gpus:
        return Group(size=size, link=node.link)
    # Rings cross between nodes over the ports of all members inside a node at once.
    members = max(1, node.num_gpus // inner)
    bandwidth = min(node.link.bytes_per_second, network.bytes_per_second * members)
    return Group(size=size, link=replace(network, bytes_per_second=bandwidth))
