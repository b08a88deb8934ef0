"""What FSDP sends for a micro-batch takes as long as it takes, whatever is computed beside it: a bound for layouts that
send more than they compute.

A stage gathers each of its blocks behind the one before, and reduces them so, over one set of wires (`passes.ahead` and
`passes.back`): neither of its passes is shorter than its blocks' messages. Latencies are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

from shardwise.plan.kernels import OFFLOAD_BYTES_PER_SECOND
from shardwise.plan.links import Group, fastest_link, group_of
from shardwise.plan.passes import mean, shard_group
from shardwise.plan.persistent import weight_degree
from shardwise.plan.types import REDUCTION_BYTES
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.layout import Layout


class Traffic(NamedTuple):
    """Seconds for the mean block and one micro-batch, at least.

    Attributes:
        ahead: of the messages of its forward.
        back: of those of its backward.
        fetched: that its forward waits for its weights, where nothing hides that.
        again: that its backward does.
    """

    ahead: float
    back: float
    fetched: float
    again: float

    def over(self, forward: float, backward: float) -> float:
        """Seconds of its forward and backward, at least, which compute for so many."""
        return max(forward + self.fetched, self.ahead) + max(backward + self.again, self.back)


class Loads(NamedTuple):
    """Bytes of the mean block on one tensor-parallel rank.

    Attributes:
        gathered: its weights, as they travel.
        reduced: its gradients, as they do.
        stored: its weights where they lie; 0 where that is the GPU.
        returned: its gradients to there.
    """

    gathered: float
    reduced: float
    stored: float
    returned: float


def loads_of(work: Work) -> Loads:
    """What the blocks of an execution load wires and buses with, whatever shares it out."""
    types, tp = work.types, work.execution.layout.tp
    on_host = work.execution.parameters_on_host and work.setting.cuda
    trained = mean(work, lambda unit: unit.trained_elements) / tp
    stored = mean(work, lambda unit: unit.stored_bytes(types)) / tp
    return Loads(
        gathered=mean(work, lambda unit: unit.gathered_bytes(types)) / tp,
        reduced=trained * REDUCTION_BYTES,
        stored=stored if on_host else 0.0,
        returned=trained * types.trainable if on_host else 0.0,
    )


def least_traffic(loads: Loads, cluster: Cluster, layouts: Iterable[Layout]) -> Traffic:
    """What none of some layouts stays below that make weights whole for every micro-batch."""
    return reduce(_lesser, (_traffic(loads, cluster, layout) for layout in layouts))


def lightest_traffic(loads: Loads, cluster: Cluster, *, tp: int, fewest: int, most: int, again: bool) -> Traffic:
    """What no layout of a strategy stays below on any part of a cluster.

    Args:
        loads: of its blocks.
        cluster: the largest part.
        tp: ranks inside those among which weights are cut.
        fewest: shards, at least.
        most: shards, at most, those along the sequence counted.
        again: weights are gathered once more in the backward.
    """
    fetch, returned = (count / most / OFFLOAD_BYTES_PER_SECOND for count in (loads.stored, loads.returned))
    if fewest == 1:
        return Traffic(0.0, returned, fetch, again * fetch)
    shard = Group(size=fewest, link=fastest_link(cluster, inner=tp))
    gather = shard.bare_seconds(loads.gathered) + fetch
    return Traffic(gather, again * gather + shard.bare_seconds(loads.reduced) + returned, 0.0, 0.0)


def _lesser(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(*map(min, one, other))


def _traffic(loads: Loads, cluster: Cluster, layout: Layout) -> Traffic:
    hidden, shards = layout.weight_shards > 1, weight_degree(layout)
    shard = shard_group(cluster, layout)
    replicate = group_of(cluster, layout, "dp_replicate")
    fetch, back = (count / shards / OFFLOAD_BYTES_PER_SECOND for count in (loads.stored, loads.returned))
    gather = shard.bare_seconds(loads.gathered) + fetch * hidden
    returned = shard.bare_seconds(loads.reduced) + 2 * replicate.bare_seconds(loads.reduced / shard.size) + back
    again = float(layout.reshard_after_forward)
    waited = 0.0 if hidden else fetch
    return Traffic(gather, again * gather + returned, waited, again * waited)
