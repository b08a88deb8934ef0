"""Which GPUs have which kernels of attention."""

from __future__ import annotations

import pytest

from shardwise.catalog.gpus import find_gpu
from shardwise.spec.attention import attention_refusal
from shardwise.spec.execution import Attention

SECOND = "flash_attention_2, which needs a GPU with bfloat16 (Ampere or newer); use sdpa"
THIRD = "flash_attention_3, which needs a GPU like the H100; use "


@pytest.mark.parametrize(
    ("name", "attention", "said"),
    [
        *((name, "flash_attention_2", SECOND) for name in ("T4", "V100-16GB", "RTX-2080-Ti", "Quadro-RTX-8000")),
        ("T4", "flash_attention_3", f"{THIRD}sdpa"),
        ("A100-40GB", "flash_attention_3", f"{THIRD}flash_attention_2 or sdpa"),
        ("B200", "flash_attention_3", f"{THIRD}flash_attention_2 or sdpa"),
        *((name, "sdpa", None) for name in ("T4", "H100-SXM")),
        *((name, "flash_attention_3", None) for name in ("H100-SXM", "H200", "GH200")),
        *(("H200", attention, None) for attention in ("eager", "flex_attention", "flash_attention_2")),
    ],
)
def test_a_kernel_is_refused_where_a_gpu_has_none(name: str, attention: Attention, said: str | None) -> None:
    assert attention_refusal(attention, find_gpu(name).gpu) == (said and f"train.attn_implementation is {said}")
