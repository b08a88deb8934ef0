"""What share of its peak a GPU is taken to reach, by its name."""

from dataclasses import replace

import pytest

from shardwise import api
from shardwise.catalog.gpus import find_gpu
from shardwise.plan.rates.kernels import Device, read_between
from shardwise.spec.support.sdpa import sdpa_kernel


def device(name: str) -> Device:
    return Device(gpu=find_gpu(name).gpu, compute="bfloat16", element_bytes=2)


def attended(name: str, kind: str, *, length: float = 2**30, head: int = 128) -> float:
    """The share of its peak that a GPU's attention reaches."""
    one = device(name)
    return 1 / one.attention(one.peak, kind=kind, length=length, head=head)[0]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("H20", 0.90),
        ("H200", 0.68),
        ("H200-NVL", 0.68),
        ("H100", 0.68),
        ("A10G", 0.62),
        ("A100", 0.80),
        ("L40S", 0.60),
        ("RTX-5000-Ada", 0.60),
    ],
)
def test_products_reach_the_share_of_their_own_gpu(name: str, share: float) -> None:
    assert device(name).ceiling / device(name).peak == pytest.approx(share)


def test_seconds_are_read_between_the_nearest_counts_that_were_measured() -> None:
    known = {"1000": 1.0, "4000": 8.0, "2000": 2.0}
    found = [read_between(known, count) for count in (500, 1000, 1500, 2000, 3000, 4000, 6000)]
    assert found == [1.0, 1.0, 1.5, 2.0, 5.0, 8.0, 14.0]
    assert read_between(known, 1500, times=3) == 3.5, "the latency of three, and what is sent once"


@pytest.mark.parametrize(
    ("kind", "hopper", "cut"), [("flash_attention_2", 0.36, 0.46), ("flash_attention_3", 0.56, 0.67)]
)
def test_attention_keeps_an_h20_busier_than_a_hopper_with_all_its_units(kind: str, hopper: float, cut: float) -> None:
    """Published: 66 to 84 of 148 TFLOP/s forward, and 96 to 126 with the kernels that were written for Hopper."""
    assert [attended(name, kind) for name in ("H20", "H100", "H200")] == pytest.approx([cut, hopper, hopper], rel=0.001)


def test_attention_takes_what_was_measured_of_its_type_and_pass() -> None:
    """Of bfloat16 a backward on some processors takes ten times a forward, most of it whatever the length."""
    forward, backward = {"1000000": 1e-3, "3000000": 2e-3}, {"1000000": 10e-3, "3000000": 11e-3}
    seconds = {"float32": {"forward": backward, "backward": backward}}
    seconds["bfloat16"] = {"forward": forward, "backward": backward}
    measured = replace(find_gpu("H100").gpu, attention_seconds=seconds)
    half = replace(device("H100"), gpu=measured, share=0.5)
    assert half.attention(2e6, kind="sdpa", length=128) == pytest.approx((3e-3, 21e-3)), "with half of the cores"
    assert half.attention(1e5, kind="sdpa", length=128) == pytest.approx((2e-3, 20e-3)), (
        "as a smaller one takes no less"
    )
    assert half.attention(0.0, kind="sdpa", length=128) == (0.0, 0.0)
    alone = replace(device("H100"), share=0.5)
    assert half.attention(1e6, kind="eager", length=8) == alone.attention(1e6, kind="eager", length=8)


def test_the_kernels_of_hopper_are_for_long_rows_and_those_of_the_second_generation_the_same_on_blackwell():
    """1M tokens by cuDNN took 0.6 of the time that FlashAttention-2 takes (trl-1m-2026); a B200 runs the latter no
    faster than an H100 does (Dao-AILab/flash-attention, issue 1589)."""
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
    assert best is not None and best.execution.compile is compiles
    said = any("inductor compiles no bfloat16 for T4" in reason for reason in best.reasons)
    assert said is not compiles, best.reasons


@pytest.mark.parametrize("hardware", ["1x T4", "2x V100-16GB", "1x RTX-2080-Ti", "1x Quadro-RTX-8000"])
def test_a_gpu_older_than_bfloat16_trains_in_float16_with_a_scale_of_the_loss(hardware) -> None:
    asked = ["model=SmolLM2-135M", "method=lora", f"hardware={hardware}", "train.max_steps=5000"]
    best = api.plan(overrides=asked).best
    assert best is not None and best.execution.precision == "fp16" and best.execution.compile
    assert any("is older than bfloat16 (compute capability 8.0)" in reason for reason in best.reasons)
    stated = api.plan(overrides=[*asked, "train.precision=mixed"]).best
    assert stated is not None and stated.execution.precision == "mixed"
    assert best.time.step_seconds < stated.time.step_seconds / 2, "bfloat16 runs there at float32's rate"


def test_a_gpu_with_bfloat16_trains_in_it() -> None:
    best = api.plan(overrides=["model=SmolLM2-135M", "method=lora", "hardware=1x L4"]).best
    assert best is not None and best.execution.precision == "mixed"
