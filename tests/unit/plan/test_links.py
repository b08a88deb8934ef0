"""Which link a group of ranks talks over, by where its members lie."""

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.rates.links import START_SECONDS, RankGroup, group_of
from shardwise.spec.cluster import Link
from shardwise.spec.layout.axes import AXES, Layout


def together(cluster_gpus: int, node: int, layout: Layout, axis: str) -> int:
    """Members of a group on one node, at least, of all groups along an axis and all nodes that have any."""
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for rank in range(cluster_gpus):
        at = layout.coordinates(rank)
        key = tuple(getattr(at, name) for name in AXES if name != axis)
        nodes = groups.setdefault(key, {})
        nodes[rank // node] = nodes.get(rank // node, 0) + 1
    return min(count for nodes in groups.values() for count in nodes.values())


CASES = [
    ("2 x 6x A100-80GB", 6, Layout(dp_shard=3, tp=4), "tp"),
    ("2 x 6x A100-80GB", 6, Layout(dp_shard=3, tp=4), "dp_shard"),
    ("3 x 4x L40S", 4, Layout(dp_shard=4, tp=3), "tp"),
    ("2 x 72x GB200", 72, Layout(dp_replicate=9, dp_shard=16), "dp_shard"),
    ("2 x 72x GB200", 72, Layout(dp_replicate=9, dp_shard=16), "dp_replicate"),
    ("5 x 6x A100-80GB", 6, Layout(dp_shard=3, pp=10), "pp"),
    ("2 x 8x H100", 8, Layout(dp_shard=4, tp=4), "tp"),
    ("2 x 8x H100", 8, Layout(dp_shard=4, tp=4), "dp_shard"),
    ("2 x 8x H100", 8, Layout(dp_shard=2, tp=8), "dp_shard"),
    ("4 x 8x H100", 8, Layout(dp_replicate=2, dp_shard=16), "dp_replicate"),
]


@pytest.mark.parametrize(("hardware", "node", "layout", "axis"), CASES)
def test_a_group_talks_inside_a_node_only_where_all_like_it_lie_inside_one(hardware, node, layout, axis) -> None:
    cluster = parse_hardware(hardware)
    found, size = group_of(cluster, layout, axis), getattr(layout, axis)
    least = together(cluster.num_gpus, node, layout, axis)
    if least == size:
        assert found.link == cluster.node.link
        assert found.hop is None
    else:
        assert found.hop is not None, "some of them cross between nodes"
        ports = 1 if cluster.network.shared else least
        assert found.link.bytes_per_second <= cluster.network.bytes_per_second * ports


def test_ring_collectives_follow_their_formula() -> None:
    group = RankGroup(size=4, link=Link(name="l", bytes_per_second=1e9, latency_seconds=1e-3))
    assert group.gather(0.75e9) == pytest.approx(0.75 * 1.0 + 3e-3 + START_SECONDS)  # three quarters of the link's rate
    assert group.all_reduce(1e9) == pytest.approx(2 * group.gather(1e9))
    assert RankGroup(size=1, link=group.link).gather(1e9) == 0
