"""Which GPUs have which kernels of attention."""

from __future__ import annotations

import pytest

from shardwise.catalog.gpus import find_gpu
from shardwise.spec.attention import attention_refusal
from shardwise.spec.execution import Attention


@pytest.mark.parametrize("name", ["T4", "V100-16GB", "RTX-2080-Ti", "Quadro-RTX-8000"])
def test_the_second_flash_attention_needs_bfloat16(name: str) -> None:
    said = attention_refusal("flash_attention_2", find_gpu(name).gpu)
    assert said is not None
    assert said.startswith("train.attn_implementation is flash_attention_2, which needs a GPU with bfloat16 ")
    assert said.endswith(" (Ampere or newer); use sdpa")
    assert attention_refusal("sdpa", find_gpu(name).gpu) is None


@pytest.mark.parametrize(
    ("name", "instead"),
    [("T4", "sdpa"), ("A100-40GB", "flash_attention_2 or sdpa"), ("B200", "flash_attention_2 or sdpa")],
)
def test_the_third_flash_attention_is_for_hopper(name: str, instead: str) -> None:
    said = attention_refusal("flash_attention_3", find_gpu(name).gpu)
    assert said == f"train.attn_implementation is flash_attention_3, which needs a GPU like the H100; use {instead}"


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3"])
@pytest.mark.parametrize("name", ["H100-SXM", "H200", "GH200"])
def test_hopper_runs_them_all(name: str, attention: Attention) -> None:
    assert attention_refusal(attention, find_gpu(name).gpu) is None
