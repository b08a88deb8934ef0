"""Attention kernels, and the GPUs that have them."""

from __future__ import annotations

from shardwise.spec.cluster import Gpu
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Attention

#: How the names of Hopper's GPUs begin: FlashAttention-3 is written for them (its README: "H100 / H800 GPU").
_HOPPER = ("H100", "H200", "H800", "H20", "GH200")

#: The kernels that are handed a mask for packed documents and for windows shorter than the sequence, over keys and
#: values repeated for each group of heads; the others know both themselves.
MASKED: tuple[Attention, ...] = ("sdpa", "eager")
#: The one whose result selective recompute keeps (`parallel/recompute.py`): others are no operators that it knows.
KEPT_BY_SELECTIVE: Attention = "sdpa"


def attention_refusal(attention: Attention, gpu: Gpu) -> str | None:
    """Why a GPU does not run an attention kernel, and what it does run; None where it runs it.

    FlashAttention-2 needs Ampere or newer (its README): the first NVIDIA GPUs with bfloat16.
    """
    named = f"train.attn_implementation is {attention}, which"
    if gpu.kind == "cpu":
        # Flash attention has no kernel there, and PyTorch's flex attention no backward.
        return None if attention in ("sdpa", "eager") else f"{named} is not trained on processors; use sdpa or eager"
    if attention == "flash_attention_3" and not gpu.name.startswith(_HOPPER):
        return f"{named} needs a GPU like the H100; use {'sdpa' if _old(gpu) else 'flash_attention_2 or sdpa'}"
    if attention == "flash_attention_2" and _old(gpu):
        return f"{named} needs a GPU with bfloat16 (Ampere or newer); use sdpa"
    return None


def stated_attention_refusal(job: Job, gpu: Gpu) -> str | None:
    """Likewise, of the kernel that a job states."""
    stated = job.train.attn_implementation
    return None if stated == "auto" else attention_refusal(stated, gpu)


def _old(gpu: Gpu) -> bool:
    return "bfloat16" not in gpu.dense_flops
