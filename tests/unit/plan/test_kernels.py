"""What share of its peak a GPU is taken to reach, by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise import api
from shardwise.catalog.gpus import find_gpu
from shardwise.plan.rates.kernels import Device


def device(name: str) -> Device:
    return Device(gpu=find_gpu(name).gpu, compute="bfloat16", element_bytes=2)


def attended(name: str, kind: str) -> float:
    """The share of its peak that a GPU's attention reaches."""
    one = device(name)
    return 1 / one.attention(one.peak, kind=kind)[0]


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


@pytest.mark.parametrize(("kind", "hopper", "cut"), [("sdpa", 0.27, 0.42), ("flash_attention_3", 0.50, 0.65)])
def test_attention_keeps_an_h20_busier_than_a_hopper_with_all_its_units(kind: str, hopper: float, cut: float) -> None:
    """Published: 66 to 84 of 148 TFLOP/s forward, and 96 to 126 with the kernels that were written for Hopper."""
    assert [attended(name, kind) for name in ("H20", "H100", "H200")] == pytest.approx([cut, hopper, hopper])


def test_attention_takes_what_was_measured_of_its_type_and_pass() -> None:
    """Of bfloat16 a backward on some processors takes ten times a forward, most of it whatever the length."""
    forward, backward = {"1000000": 1e-3, "3000000": 2e-3}, {"1000000": 10e-3, "3000000": 11e-3}
    seconds = {"float32": {"forward": backward, "backward": backward}}
    seconds["bfloat16"] = {"forward": forward, "backward": backward}
    measured = replace(find_gpu("H100").gpu, attention_seconds=seconds)
    half = replace(device("H100"), gpu=measured, share=0.5)
    assert half.attention(2e6, kind="sdpa") == pytest.approx((3e-3, 21e-3)), "with half of the cores"
    assert half.attention(1e5, kind="sdpa") == pytest.approx((2e-3, 20e-3)), "as a smaller one takes no less"
    assert half.attention(0.0, kind="sdpa") == (0.0, 0.0)
    assert half.attention(1e6, kind="eager") == replace(device("H100"), share=0.5).attention(1e6, kind="eager")


@pytest.mark.parametrize(("precision", "compiles"), [("mixed", False), ("fp16", True)])
def test_blocks_in_bfloat16_are_not_compiled_for_gpus_that_have_none(precision, compiles) -> None:
    asked = ["model=SmolLM2-135M", "method=full", "hardware=1x T4", "train.max_steps=5000"]
    best = api.plan(overrides=[*asked, f"train.precision={precision}"]).best
    assert best is not None and best.execution.compile is compiles
    said = any("inductor compiles no bfloat16 for T4" in reason for reason in best.reasons)
    assert said is not compiles, best.reasons
