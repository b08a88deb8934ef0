"""What share of its peak a GPU reaches, by its name, and over which link a group of ranks talks."""

from dataclasses import replace

import pytest

from shardwise import api
from shardwise.catalog.gpus import find_gpu, parse_hardware
from shardwise.plan.rates.kernels import Device, read_between
from shardwise.plan.rates.links import START_SECONDS, RankGroup, group_of
from shardwise.spec.cluster import Link
from shardwise.spec.layout.axes import AXES, Layout
from shardwise.spec.support.sdpa import sdpa_kernel
from tests.unit.plan.asking import plan


def device(name: str) -> Device:
    return Device(gpu=find_gpu(name).gpu, compute="bfloat16", element_bytes=2)


def attended(name: str, kind: str, *, length: float = 2**30, head: int = 128) -> float:
    """The share of its peak that a GPU's attention reaches."""
    one = device(name)
    return 1 / one.attention(one.peak, kind=kind, length=length, head=head)[0]


def test_seconds_are_read_between_what_was_measured_of_type_and_pass() -> None:
    known = {"1000": 1.0, "4000": 8.0, "2000": 2.0}
    found = [read_between(known, count) for count in (500, 1000, 1500, 2000, 3000, 4000, 6000)]
    assert found == [1.0, 1.0, 1.5, 2.0, 5.0, 8.0, 14.0]
    assert read_between(known, 1500, times=3) == 3.5, "the latency of three, and what is sent once"
    forward, backward = {"1000000": 1e-3, "3000000": 2e-3}, {"1000000": 10e-3, "3000000": 11e-3}
    seconds = {"float32": {"forward": backward, "backward": backward}}
    seconds["bfloat16"] = {"forward": forward, "backward": backward}
    measured = replace(find_gpu("H100").gpu, attention_seconds=seconds)
    half = replace(device("H100"), gpu=measured, share=0.5)
    assert half.attention(2e6, kind="sdpa", length=128) == pytest.approx((3e-3, 21e-3)), "with half of the cores"
    assert half.attention(1e5, kind="sdpa", length=128) == pytest.approx((2e-3, 20e-3)), "a smaller one takes no less"
    assert half.attention(0.0, kind="sdpa", length=128) == (0.0, 0.0)
    alone = replace(device("H100"), share=0.5)
    assert half.attention(1e6, kind="eager", length=8) == alone.attention(1e6, kind="eager", length=8)


@pytest.mark.parametrize(("version", "hopper", "cut"), [(2, 0.36, 0.46), (3, 0.56, 0.67)])
def test_attention_keeps_an_h20_busier_than_a_hopper_with_all_its_units(version, hopper, cut) -> None:
    """Published: 66 to 84 of 148 TFLOP/s forward; 96 to 126 with kernels for Hopper."""
    kind = f"flash_attention_{version}"
    assert [attended(name, kind) for name in ("H20", "H100", "H200")] == pytest.approx([cut, hopper, hopper], rel=0.001)


def test_the_kernels_of_hopper_are_for_long_rows_and_those_of_the_second_generation_the_same_on_blackwell():
    """Of trl-1m-2026, and of issue 1589 of Dao-AILab/flash-attention."""
    assert attended("H100", "cudnn") == pytest.approx(attended("H100", "flash") / 0.62, rel=0.05)
    assert attended("H100", "cudnn", length=2048) < 0.6 * attended("H100", "cudnn")
    assert attended("B200", "flash") * 2250 == pytest.approx(attended("H100", "flash") * 989, rel=0.1)
    assert attended("H100", "cudnn", head=64) == pytest.approx(0.7 * attended("H100", "cudnn"))


@pytest.mark.parametrize(
    ("name", "compute", "heads", "masked", "kernel"),
    [
        ("H100", "bfloat16", (128, 128), False, "cudnn"),
        ("B200", "float16", (64, 64), False, "cudnn"),
        ("H100", "bfloat16", (128, 128), True, "cudnn"),
        ("H100", "bfloat16", (192, 128), False, "cudnn"),
        ("H100", "bfloat16", (256, 256), False, "cudnn"),
        ("B200", "bfloat16", (256, 256), False, "flash"),
        ("H100", "float32", (128, 128), False, "efficient"),
        ("A100", "bfloat16", (128, 128), False, "flash"),
        ("A100", "bfloat16", (128, 128), True, "efficient"),
        ("A100", "bfloat16", (192, 128), False, "efficient"),
        ("RTX-5090", "bfloat16", (128, 128), False, "flash"),
        ("RTX-4090", "bfloat16", (208, 208), False, "efficient"),
        ("T4", "float16", (128, 128), False, "efficient"),
        ("T4", "bfloat16", (128, 128), False, "math"),
        ("V100-16GB", "float32", (128, 128), False, "efficient"),
        ("A100", "bfloat16", (100, 100), True, "math"),
        ("MI300X", "bfloat16", (128, 128), False, "flash"),
    ],
)
def test_the_kernel_is_the_first_of_pytorchs_order_whose_conditions_hold(name, compute, heads, masked, kernel):
    assert sdpa_kernel(find_gpu(name).gpu, compute, heads=heads, masked=masked) == kernel


@pytest.mark.parametrize(("precision", "compiles"), [("mixed", False), ("fp16", True)])
def test_blocks_in_bfloat16_are_not_compiled_for_gpus_that_have_none(precision, compiles) -> None:
    asked = ["model=SmolLM2-135M", "method=full", "hardware=1x T4", "train.max_steps=5000"]
    best = api.plan(overrides=[*asked, f"train.precision={precision}"]).best
    assert best.execution.compile is compiles
    said = any("inductor compiles no bfloat16 for T4" in reason for reason in best.reasons)
    assert said is not compiles, best.reasons


@pytest.mark.parametrize("hardware", ["1x T4", "2x V100-16GB", "1x RTX-2080-Ti", "1x Quadro-RTX-8000"])
def test_a_gpu_older_than_bfloat16_trains_in_float16_with_a_scale_of_the_loss(hardware) -> None:
    best = plan("smollm2-135m", hardware, "method: lora\ntrain: {max_steps: 5000}").best
    assert best.execution.precision == "fp16" and best.execution.compile
    assert any("is older than bfloat16 (compute capability 8.0)" in reason for reason in best.reasons)
    stated = plan("smollm2-135m", hardware, "method: lora\ntrain: {max_steps: 5000, precision: mixed}").best
    assert best.time.step_seconds < stated.time.step_seconds / 2, "bfloat16 runs there at float32's rate"
    assert plan("smollm2-135m", "1x L4", "method: lora\n").best.execution.precision == "mixed", "a newer one"


def together(cluster_gpus: int, node: int, layout: Layout, axis: str) -> int:
    """Members of a group on one node at least, of all groups along an axis, and all nodes."""
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for rank in range(cluster_gpus):
        at = layout.coordinates(rank)
        nodes = groups.setdefault(tuple(getattr(at, name) for name in AXES if name != axis), {})
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
