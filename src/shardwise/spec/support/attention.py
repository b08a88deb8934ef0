"""Attention kernels: the GPUs, models and rows that they are for."""

from shardwise.spec.cluster import Gpu
from shardwise.spec.job.keys import Auto, Job
from shardwise.spec.layout.execution import Attention, Precision
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.splits import MASKED_WITHOUT_POSITIONS

#: Prefixes of Hopper GPU names: FlashAttention-3 is for them (its README: "H100 / H800 GPU").
_HOPPER = ("H100", "H200", "H800", "H20", "GH200")

#: The kernels that are handed a mask for packed documents and for windows shorter than the
#: sequence, over keys and values repeated for each group of heads; the others know both themselves.
MASKED: tuple[Attention, ...] = ("sdpa", "eager")
#: Those that are told where packed documents lie, and compute in 16 bits on a GPU.
BY_DOCUMENT: tuple[Attention, ...] = ("varlen", "flash_attention_2", "flash_attention_3")
#: Those whose result selective recompute keeps (`parallel/recompute.py`): it knows no others.
KEPT_BY_SELECTIVE: tuple[Attention, ...] = ("sdpa", "varlen")

#: Families whose code in transformers does not pass on to attention where documents lie.
UNTOLD = ("gpt_neo", "gptj", "nemotron", "stablelm")
#: The widest head of FlashAttention's kernels, which want a multiple of 8.
_WIDEST_HEAD = 256


def attention_refusal(attention: Attention, gpu: Gpu, *, precision: Precision | Auto = "auto") -> str | None:
    """Why a GPU does not run an attention kernel, and what it runs; None: it does. FlashAttention-2
    needs Ampere or newer (its README): the first with bfloat16. `varlen` is made of it."""
    named = f"train.attn_implementation is {attention}, which"
    if gpu.kind == "cpu":
        # Flash attention has no kernel there, and PyTorch's flex attention no backward.
        trained = attention in ("sdpa", "eager", "varlen")
        return None if trained else f"{named} is not trained on processors; use sdpa or eager"
    if attention == "flash_attention_3" and not gpu.name.startswith(_HOPPER):
        return f"{named} needs a GPU like the H100; use {'sdpa' if _old(gpu) else 'flash_attention_2 or sdpa'}"
    if attention in BY_DOCUMENT and _old(gpu):
        return f"{named} needs a GPU with bfloat16 (Ampere or newer); use sdpa"
    if attention in BY_DOCUMENT and precision == "fp32":
        return f"{named} computes in 16 bits, and train.precision is fp32; use sdpa"
    return None


def stated_attention_refusal(job: Job, gpu: Gpu) -> str | None:
    """Likewise, of the kernel that a job states."""
    stated = job.train.attn_implementation
    return None if stated == "auto" else attention_refusal(stated, gpu, precision=job.train.precision)


def documents_refusal(job: Job, model: ModelShape, attention: Attention) -> str | None:
    """What keeps a kernel told where documents lie from a job's rows; None where nothing does."""
    if attention not in BY_DOCUMENT:
        return None
    told = "documents" in model.built if model.built is not None else model.family not in UNTOLD
    if job.data.packing and not told:
        return f"is not told by {model.family}'s code in transformers where packed documents lie"
    return _varlen_refusal(job, model) if attention == "varlen" else None


def joins_rows(job: Job, model: ModelShape, attention: Attention) -> bool:
    """Whether rows that are not packed are computed as documents of one row, without padding: where
    packed ones are kept apart. Of models without rules forecasts are made of padded rows."""
    mixes = model.mixes_documents or model.family in (*UNTOLD, *MASKED_WITHOUT_POSITIONS) or model.built is not None
    return attention in BY_DOCUMENT and not (mixes or job.data.packing or job.objective != "sft")


def _varlen_refusal(job: Job, model: ModelShape) -> str | None:
    wide = model.head_dim > _WIDEST_HEAD or model.head_dim % 8 or model.value_head_dim is not None
    length, drops = job.data.max_length, model.drops_out and not job.train.disable_dropout
    windowed = (model.sliding_window or length) < length
    lacks = {
        "is for packed rows, and data.packing is false": not (job.data.packing or joins_rows(job, model, "varlen")),
        "cannot cap scores": model.attention_softcap,
        f"transformers has not for {model.family}": model.eager_attention,
        f"has no window, and this model's is {model.sliding_window} tokens": windowed,
        f"wants heads of keys and values alike, at most {_WIDEST_HEAD} wide and a multiple of 8": wide,
        "drops nothing out, as this model does without train.disable_dropout: true": drops,
    }
    return next((what for what, holds in lacks.items() if holds), None)


def _old(gpu: Gpu) -> bool:
    return "bfloat16" not in gpu.dense_flops
