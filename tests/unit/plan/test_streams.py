"""The event simulation, on schedules small enough to draw."""

from dataclasses import replace

import pytest

from shardwise.catalog.gpus import find_gpu, parse_hardware
from shardwise.plan.explain.timeline import Streams
from shardwise.plan.time.kernels import Device
from shardwise.plan.time.links import START_SECONDS, Group, group_of
from shardwise.spec.cluster import Link
from shardwise.spec.layout import Layout


def test_tasks_of_one_stream_follow_each_other():
    streams = Streams()
    streams.add("compute", 2, name="a")
    streams.add("compute", 3, name="b")
    assert [(t.start, t.end) for t in streams.tasks] == [(0, 2), (2, 5)]


def test_a_task_waits_for_what_it_needs_on_another_stream():
    streams = Streams()
    gathered = streams.add("gather", 4, name="gather")
    streams.add("compute", 1, name="early")
    streams.add("compute", 2, name="needs it", after=(gathered,))
    assert streams.tasks[2].start == 4
    assert streams.end == 6


def test_busy_time_counts_overlaps_once_and_waiting_not_at_all():
    streams = Streams()
    first = streams.add("compute", 2, name="a")
    streams.add("reduce", 5, name="b", after=(first,))
    streams.add("compute", 1, name="c")
    assert streams.busy_seconds("compute", "reduce") == 7
    assert streams.busy_seconds("compute") == 3


def test_a_kernel_shorter_than_its_launch_leaves_the_gpu_idle():
    streams = Streams()
    streams.add("compute", 4, name="a", busy=1)
    assert streams.end == 4
    assert streams.busy_seconds("compute") == 1


def test_small_products_reach_less_of_the_peak():
    device = Device(gpu=find_gpu("H100").gpu, compute="bfloat16", element_bytes=2)
    shares = [2 * n**3 / device.product(n, n, n) / device.peak for n in (64, 512, 4096, 16384)]
    assert shares == sorted(shares)
    assert 0.6 < shares[-1] < 0.76
    assert shares[0] < 0.1


def test_ring_collectives_follow_their_formula():
    group = Group(size=4, link=Link(name="l", bytes_per_second=1e9, latency_seconds=1e-3))
    assert group.gather(0.75e9) == pytest.approx(0.75 * 1.0 + 3e-3 + START_SECONDS)  # three quarters of the link's rate
    assert group.all_reduce(1e9) == pytest.approx(2 * group.gather(1e9))
    assert Group(size=1, link=group.link).gather(1e9) == 0


def test_groups_inside_a_node_use_its_link_and_others_the_ports_of_their_members():
    cluster = parse_hardware("4 x 8x H100-SXM")
    layout = Layout(dp_replicate=4, dp_shard=8)
    assert group_of(cluster, layout, "dp_shard").link == cluster.node.link
    between = group_of(cluster, layout, "dp_replicate").link
    assert between.bytes_per_second == cluster.network.bytes_per_second
    whole = group_of(cluster, Layout(dp_shard=32), "dp_shard").link
    assert whole.bytes_per_second == 8 * cluster.network.bytes_per_second


def test_a_port_that_a_node_s_gpus_share_is_counted_once_for_all_of_them():
    cluster = parse_hardware("2 x 4x RTX-A6000")
    port, inside = cluster.network.bytes_per_second, cluster.node.link
    whole = group_of(cluster, Layout(dp_shard=8), "dp_shard")
    assert (whole.link.name, whole.link.bytes_per_second) == (cluster.network.name, port)
    across = group_of(cluster, Layout(dp_replicate=2, dp_shard=4), "dp_replicate")
    assert across.link.bytes_per_second == port / 4, "four such groups talk at once"
    assert group_of(cluster, Layout(dp_replicate=2, dp_shard=4), "dp_shard").link == inside


def test_a_ring_across_nodes_is_no_faster_than_what_its_members_have_inside_one():
    """PCI Express carries a smaller share of its nominal rate than a network of eight ports."""
    cluster = parse_hardware("2 x 8x H100-PCIe")
    cluster = replace(cluster, network=parse_hardware("2 x 8x H100-SXM").network)
    within = group_of(cluster, Layout(dp_replicate=2, dp_shard=8), "dp_shard")
    across = group_of(cluster, Layout(dp_shard=16), "dp_shard")
    assert across.link == within.link == cluster.node.link
    assert across.gather(1e9) > within.gather(1e9)


def test_one_message_between_nodes_has_one_port_or_its_part_of_the_shared_one():
    fast, slow = parse_hardware("2 x 8x H100-SXM"), parse_hardware("2 x 4x RTX-A6000")
    pipeline = group_of(fast, Layout(pp=16), "pp")
    assert pipeline.hop.bytes_per_second == fast.network.bytes_per_second
    assert pipeline.message(1e9) > 1e9 / fast.network.bytes_per_second
    alone = group_of(slow, Layout(pp=8), "pp")
    together = group_of(slow, Layout(pp=2, dp_shard=4), "pp")
    assert alone.hop.bytes_per_second == slow.network.bytes_per_second
    assert together.hop.bytes_per_second == slow.network.bytes_per_second / 4
