"""What attention kernels reach of a GPU's peak, by kernel, GPU, length of a row and width of a
head.

A causal row's last tiles are half empty, so that short ones reach less: `length / (length + half)`.
Shares of long rows, and where they come from:

- FlashAttention-2: 50 to 73 % of an A100's peak (arXiv 2307.08691, section 1), 370 TFLOP/s forward
  without a mask on an H100 (FlashAttention-3, arXiv 2407.08608, figure 5), 380 forward and 334
  backward on a B200 (Dao-AILab/flash-attention, issue 1589). The share of Hopper is fitted to the
  row of trl-1m-2026 in which it ran, that of Blackwell to those of prime-rl-bench.
- cuDNN and FlashAttention-3 on Hopper: 595 to 617 and 625 to 648 TFLOP/s forward (same figure),
  less what a whole step leaves of it: fitted to the rows of 1M tokens of trl-1m-2026, and to those
  of prime-rl-bench.
- cuDNN on Blackwell: FlashAttention-4 (arXiv 2603.05451) has it at 1.2 of 2.25 PFLOP/s, less as
much.
- workstation cards, whose products stay near their peak: a full-training row of prime-rl-bench on
an RTX A6000.
"""

from shardwise.spec.cluster import Gpu

#: The kind of attention that walks over all scores, for a mask says which count.
MASKED_ATTENTION = "masked"
#: What a probe measures: the kernels of `scaled_dot_product_attention`, which are `varlen`'s too.
PROBED = ("sdpa", "varlen", "cudnn", "flash", "efficient", "math", MASKED_ATTENTION)

_FLASH_2 = (
    *(("H20", 0.46), ("H", 0.36), ("GH", 0.36), ("B", 0.15), ("GB", 0.15)),
    *(("RTX-PRO", 0.47), ("RTX", 0.65), ("cpu", 0.6), ("", 0.55)),
)
#: xformers' kernel, which the second generation of FlashAttention is about twice as fast as over
#: the same scores (FlashAttention-2, arXiv 2307.08691, figures 4 to 6: A100). No rate of cuDNN's
#: with a mask is known to us: this one's stands for it.
_EFFICIENT = (("H20", 0.21), ("H", 0.14), ("B", 0.07), ("G", 0.07), ("cpu", 0.6), ("", 0.21))
_WRITTEN_OUT = (("", 0.35),)
#: Of the peak, by kernel and by how the GPU's name begins. Written out, products are batches of
#: small ones, and the softmax walks over memory.
_SHARES = {
    "cudnn": (("H20", 0.60), ("H", 0.585), ("GH", 0.585), ("", 0.50)),
    "flash_attention_3": (("H20", 0.67), ("H", 0.56), ("GH", 0.56), ("", 0.40)),
    "eager": _WRITTEN_OUT,
    "math": _WRITTEN_OUT,
    "efficient": _EFFICIENT,
    MASKED_ATTENTION: _EFFICIENT,
    "flex_attention": (("H20", 0.35), ("H", 0.28), ("B", 0.14), ("G", 0.14), ("", 0.35)),
}
#: Tokens of a causal row at which a kernel reaches half of that. Alone, cuDNN and FlashAttention-3
#: are there at 500 (figures of causal rows in that paper). In steps of our own on an H100, rows of
#: 2048 tokens took as long as if it were 2048 for cuDNN (`accuracy/h100-cells.csv`), which the rows
#: of trl-1m-2026 cannot tell.
_HALF_LENGTHS = {"cudnn": 2048, "flash_attention_3": 512, "efficient": 0, "eager": 0, "math": 0, MASKED_ATTENTION: 0}
_HALF_LENGTH = 256
#: What heads of 64 leave of the rate of wider ones (figure 5 of arXiv 2407.08608, 16k tokens).
_NARROW_HEAD, _NARROW_SHARES = 64, {"cudnn": 0.70, "flash_attention_3": 0.77, "flash": 0.88, "flash_attention_2": 0.88}


def attention_share(gpu: Gpu, kind: str, *, length: float, head: int) -> float:
    """Share of the dense peak that a kernel reaches in forward over rows of a length."""
    half = _HALF_LENGTHS.get(kind, _HALF_LENGTH) if gpu.kind == "cuda" else 0
    narrow = _NARROW_SHARES.get(kind, 1.0) if head <= _NARROW_HEAD and gpu.kind == "cuda" else 1.0
    return share_of(_SHARES.get(kind, _FLASH_2), gpu.name) * narrow * length / (length + half)


def share_of(rules: tuple[tuple[str, float], ...], name: str) -> float:
    """That of the first rule whose beginning the name has; numbers whole: an H200 is no H20."""
    return next(share for start, share in rules if _begins(name, start))


def _begins(name: str, start: str) -> bool:
    return name.startswith(start) and not (start[-1:].isdigit() and name[len(start) :][:1].isdigit())
