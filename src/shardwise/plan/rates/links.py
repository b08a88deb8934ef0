"""Seconds of messages between GPUs: a latency for each hop, and bytes over the rate that a link
reaches (alpha-beta model); and of copies to and from the host's memory."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd

from shardwise.plan.rates.kernels import read_between
from shardwise.spec.cluster import Cluster, Link
from shardwise.spec.layout.axes import AXES, Layout

#: Share of a link's nominal rate that a collective reaches, by how the link's name begins. PCI
#: Express: rings of 4 and 8 GPUs on a 63 GB/s port carry 35 and 28 GB/s through switches,
#: "impressive" to NCCL's maintainer (NVIDIA/nccl issue 1639), and less through the processor.
#: NVLink and networks: three quarters, as `nccl-tests` commonly print.
_COLLECTIVE_SHARES = (("pcie", 0.35), ("nvlink", 0.75), ("", 0.75))
#: Share that one message between two neighbours reaches: nobody else is on its way.
_MESSAGE_SHARE = 0.75
#: Share of the link to the host that copies of page-locked memory reach: 12 of 15.75 GB/s on a
#: V100, 25 of 31.5 on an A100 (ZaidQureshi/bam issue 54), 52.8 of 63 on an H100 (NVIDIA/nvbandwidth
#: issue 24). Of such a link pairs of GPUs behind one switch (DGX A100) get half each. `probe`
#: measures it.
_HOST_SHARE = 0.8
#: A collective's own fixed cost: the launch of its kernel, and the ranks finding each other.
START_SECONDS = 15e-6


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """Ranks in collectives, over their slowest link: ring algorithms (Thakur et al., 2005).

    Attributes:
        link: the slowest on the ring.
        ring_seconds: latencies of all hops of the ring but one; None where every hop is the link.
        hop: what one message between neighbours goes over at worst; None where that is the link
            too.
    """

    size: int
    link: Link
    ring_seconds: float | None = None
    hop: Link | None = None

    def gather(self, count: float) -> float:
        """Seconds until every rank has all `count` bytes, of which each had a share."""
        return self._ring("gather", count)

    def exchange(self, count: float) -> float:
        """Seconds until every rank has written its share of `count` bytes to all, as in ZeRO-1."""
        return self._ring("exchange" if "exchange" in self.link.message_seconds else "gather", count)

    def scatter(self, count: float) -> float:
        """Seconds until every rank has its share of the sum of `count` bytes."""
        return self._ring("scatter", count)

    def all_reduce(self, count: float) -> float:
        """Seconds until every rank has the sum of `count` bytes: a reduce-scatter and a gather."""
        return self._ring("all_reduce", count, rounds=2)

    def _ring(self, what: str, count: float, *, rounds: int = 1) -> float:
        if self.size == 1 or not count:
            return 0.0
        passing = (self.size - 1) / self.size * count
        if known := self.link.message_seconds.get(what):
            hops = self.link.ranks - 1
            return read_between(known, passing * self.link.ranks / hops, times=(self.size - 1) / hops)
        waited = (self.size - 1) * self.link.latency_seconds if self.ring_seconds is None else self.ring_seconds
        return rounds * (passing / _carried(self.link) + waited + START_SECONDS)

    def message(self, count: float) -> float:
        """Seconds until one neighbour has `count` bytes."""
        if self.size == 1:
            return 0.0
        link = self.hop or self.link
        if known := link.message_seconds.get("message"):
            return read_between(known, count)
        return count / (link.bytes_per_second * _MESSAGE_SHARE) + link.latency_seconds + START_SECONDS


def _carried(link: Link) -> float:
    share = 1.0 if link.measured else next(s for start, s in _COLLECTIVE_SHARES if link.name.startswith(start))
    return link.bytes_per_second * share


def copy_seconds(cluster: Cluster, count: float) -> float:
    """Seconds until so many bytes of one GPU are in page-locked memory of its host, or back."""
    gpu = cluster.gpu
    share = 1.0 if gpu.measured else _HOST_SHARE / min(cluster.node.num_gpus, 2)
    return count / (share * gpu.host_bytes_per_second)


def group_of(cluster: Cluster, layout: Layout, *axes: str) -> RankGroup:
    """The ranks along neighbouring axes; those on inner axes share a node first."""
    size, inner = 1, 1
    for axis in reversed(AXES):
        if axis in axes:
            size *= getattr(layout, axis)
        elif size == 1:
            inner *= getattr(layout, axis)
    node = cluster.node
    return _group(node.num_gpus, node.link, cluster.network, size, inner)


@lru_cache(maxsize=256)
def _group(node: int, link: Link, network: Link | None, size: int, inner: int) -> RankGroup:
    """So many ranks that are `inner` apart, on nodes of so many GPUs."""
    # The fewest of them on one node.
    members = size if node % (size * inner) == 0 else max(1, gcd(size * inner, node) // inner)
    if size == 1 or network is None or members == size:
        return RankGroup(size=size, link=link)
    # Rings cross between nodes over the ports of all members inside a node at once; of a port that
    # all GPUs of a node share they have their part, for the other groups talk at the same time.
    rings, at_once = (members / node, min(inner, node)) if network.shared else (members, 1)
    between = replace(network, bytes_per_second=network.bytes_per_second * rings)
    alone = replace(network, bytes_per_second=network.bytes_per_second / at_once)
    crossings = -(-size // members)
    hops = crossings * network.latency_seconds + (size - 1 - crossings) * link.latency_seconds
    return RankGroup(
        size=size,
        link=min(between, link, key=_carried),
        ring_seconds=max(hops, 0.0),
        hop=min(alone, link, key=lambda one: one.bytes_per_second),
    )
