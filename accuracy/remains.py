"""What remains of the errors, and why: what the rows of a source say, what is supposed, and what would decide.

The figures of a forecast are computed where the page is written; only figures of published rows stand in these words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from accuracy.compare import Comparison, Feasibility
from accuracy.errors import Summary, summarise
from accuracy.rows import DEVICE, RESERVED, UNSTATED

TOKENS = "tokens/s"
#: A source beyond either of these owes an explanation.
LARGE_MEDIAN, LARGE_P90 = 0.25, 0.5
_WIDTH = 120


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """Why one kind of figure of some sources is off.

    Attributes:
        known: what the rows or the source's public code say.
        supposed: what is taken to explain the rest.
        decides: which measurement or fact would tell.
    """

    sources: tuple[str, ...]
    kind: str
    known: str
    supposed: str
    decides: str

    def covers(self, c: Comparison) -> bool:
        """Whether a figure is one of these."""
        return c.source in self.sources and c.kind == self.kind


REMAINDERS: tuple[Remainder, ...] = (
    Remainder(
        sources=("prime-rl-bench",),
        kind=TOKENS,
        known="the far too fast forecasts, of 1.25 to 1.82 times the rate, are of mixtures on B200 (Qwen3-235B-A22B "
        "most, whose allocator holds 162 of 178 GiB), and of the 0.6B model at 8,192 and 16,384 tokens on one H100, "
        "whose step takes 1.6 s more than its "
        "kernels. Mixtures on H100 and H200 are within a fifth",
        supposed="on Blackwell the grouped products of that build of PyTorch are far from their peak, and four "
        "adapters at once stand beside each expert; a step of that trainer has a fixed part, for entropies and for "
        "weights that are sent on",
        decides="a profile of one of these steps",
    ),
    Remainder(
        sources=("torchtitan-commits-2026",),
        kind=TOKENS,
        known="the two rows of Llama-3.1-8B under tp 2 (1.44 and 1.75 times the rate is forecast) are of trainers "
        "that capture the whole model as a graph, one sequence a step: 4463 tokens/s and GPU on H100 "
        "where the ordinary trainer has 5760 without slices. Eager rows "
        "of Qwen3-32B are within 15 %",
        supposed="those graphs do not run gathers and reductions beside computation",
        decides="a trace, or the same trainers' rates without tensor parallelism",
    ),
    Remainder(
        sources=("scicom-ddp-2025",),
        kind=TOKENS,
        known="a model of 0.6B on four H100 at 73,000 tokens/s and GPU, with fused kernels for norms, rotary "
        "embedding, MLP and loss, and weights in 16 bits. The forecast is of our trainer's blocks, which are not fused",
        supposed="between the products of so narrow a model lies more than in them",
        decides="the same run without these kernels",
    ),
    Remainder(
        sources=("prime-rl-bench",),
        kind=RESERVED,
        known="full training of dense models and of mixtures is met within a seventh, LoRA of dense models, whose "
        "frozen base is in float32 there, too. Of LoRA of mixtures 0.6 to 0.9 of the peak is forecast: four adapters "
        "at once stand beside each expert, and what is missing grows with rows and width: 22 bytes for each element "
        "of the rows that go to experts. One such run that went out of memory was forecast to fit. Of the trainer "
        "without reinforcement learning, whose logits are whole, 0.78 to 0.86 is forecast: 18 bytes of each logit "
        "were alive, and its public kernels explain 12. The 0.6B model on an RTX A6000 held 11.7 GiB where the same "
        "settings took 19.6 on an H100",
        supposed="what each of the four adapters gives is added in a tensor of its own; the A6000 run recomputed more",
        decides="a snapshot of memory of one of these steps",
    ),
    Remainder(
        sources=("trl-1m-2026",),
        kind=UNSTATED,
        known="whether GB is 10^9 or 2^30 bytes is not said, nor for each row whether checkpoints lay in the host's "
        "memory. Least is forecast of the 0.6B model, 14.4 of 20.8",
        supposed="ring attention holds sums of gradients of keys and values in float32, which weigh most in a model so "
        "narrow",
        decides="a snapshot of memory of that run",
    ),
    Remainder(
        sources=("torchtune-readme",),
        kind=UNSTATED,
        known="which of three figures the table prints is not stated. The one large error is the 70B model, trained "
        "in full with offload in 13.9 GiB on each of eight GPUs. The source's configuration of that commit reduces "
        "gradients in 16 bits; our trainer reduces in float32",
        supposed="the float32 gradients of the head and of a block are part of the difference; the rest is not known",
        decides="a snapshot of memory of that recipe, or the same run by our trainer",
    ),
    Remainder(
        sources=("fms-acceleration",),
        kind=DEVICE,
        known="the same rows are met closely in what PyTorch counts as allocated; beyond that, the driver saw a "
        "median of 6.8 GiB more, and up to 34.3 GiB, of which context and communicators are less than two",
        supposed="the rest is what the caching allocator held and did not use. The forecast adds what is typical; how "
        "much it is in one run depends on the order in which sizes were asked for, which no sum of tensors knows",
        decides="reserved peaks beside the allocated ones, which this source does not print. Those sources that do "
        "are the rows of kind `reserved`",
    ),
    Remainder(
        sources=("qwen-readme",),
        kind=UNSTATED,
        known="under DeepSpeed 13.1 % less is forecast than was measured, alone 6.2 %. Full training of 7B on two "
        "GPUs, whose states are the same at any length, takes 65, 69 and 75 GiB of each with 256, 512 and 1024 tokens: "
        "the card is full, and 768 tokens have 1 GiB of logits. GPTQ's kernel (auto_gptq 0.5.1, qlinear_cuda_old.py) "
        "keeps a block's weights in 16 bits to its backward, 0.4 GiB of 7B, 1.6 of 72B, which is no term: no target "
        "trains on it. LoRA of the 1.8B model takes 6.2 GiB on 256 tokens, of which weights, adapters and their states "
        "are 3.9",
        supposed="figures are the driver's, which sees what the allocator holds and does not use: of fms-acceleration "
        "14.2 % less is forecast than the driver saw, too",
        decides="allocated and reserved peaks of one of these steps",
    ),
    Remainder(
        sources=("qwen-readme",),
        kind=TOKENS,
        known="the errors are of short sequences. A step of the 1.8B model trained in full takes 2.1, 2.2, 2.2 and "
        "2.3 s for sequences of 256, 512, 1024 and 2048 tokens, eight forwards each: what bounds it does not depend "
        "on the work. The 4-bit runs are as flat, 3.0 s at 256 and at 512 tokens for 7B",
        supposed="that the GPU waits for the host: the model's own Python code, DeepSpeed's hooks, GPTQ's unpacking "
        "kernels. The forecast knows the launches of our trainer's kernels only",
        decides="the GPU's utilisation in those runs, or a profile of one of them",
    ),
    Remainder(
        sources=("fsdp_qlora",),
        kind=TOKENS,
        known="far too fast are the small micro-batches on two RTX 3090 without NVLink, in a machine that the source "
        "calls older. On it the same LoRA run of 128 steps takes 1366 s sharded and 881 s unsharded: 3.8 s a step for "
        "13.5 GB that a rank receives, 3.6 GB/s where the catalogue's PCIe 4.0 has 31.5. Behind larger micro-batches "
        "less of that shows",
        supposed="the slots of that machine have few lanes. What the rows of grade B call `A6000 Ada` is taken for "
        "the RTX 6000 Ada, and may be the A6000, which has less than half its rate",
        decides="the bandwidth between the two GPUs, and the name that the driver gives the other ones",
    ),
    Remainder(
        sources=("torchtitan-7a04053a",),
        kind=TOKENS,
        known="one row, of a commit message: 5760 tokens/s and GPU compiled, at one sequence a forward. The same code "
        "a month before (torchtitan-202412) reached 6667 with two, on as many GPUs and a model of the same sizes, and "
        "5762 without compilation",
        supposed="a sequence of 8192 tokens should fill an H100 as two do, so that this run waited for something else",
        decides="the step's trace; as a baseline for 8-bit runs it may have been measured on another build of PyTorch",
    ),
    Remainder(
        sources=("dgxc-benchmarking", "dgxc-benchmarking-logs"),
        kind=TOKENS,
        known="LoRA of the 70B model, by PEFT on transformers' trainer under FSDP's first form, is slower than "
        "forecast, which has 1.39 to 1.71 times its rate: with the same work for each GPU its step takes "
        "93, 86, 86 and 106 s on 64, 128, 256 and 512 of "
        "them, a third of the peak with what is recomputed. The same trainer's LoRA steps on A100 (fms-acceleration) "
        "are met within 6 %. Pretraining by Megatron, whose weights are in 16 bits and whose products add up the "
        "gradients, is met",
        supposed="something beside the products that does not shrink on an H100; the runs differ by a fifth among "
        "themselves",
        decides="a profile of one of these steps",
    ),
)

#: Runs on which forecast and outcome disagree, and what is said of them.
FALSE_FITS = frozenset(f"fms-acceleration-{n}" for n in ("068", "096", "100", "120", "124", "251")) | {
    "prime-rl-bench-025"
}
FALSE_REFUSALS = frozenset(("fsdp_qlora-023", "fsdp_qlora-024"))
_FITS = (
    "**Went out of memory, forecast to fit.** Five are one setting of fms-acceleration under five versions of the "
    "software, a 70B model in 4 bits on two GPUs of 80 GB, with four rows of 4096 tokens a forward, whose driver saw "
    "75.9 to 79.0 GiB before they failed. With two rows the same five ran: 42.2 to 43.5 GiB allocated, where 41.7 are "
    "forecast, and 50.8 to 53.8 seen by the driver, 1.17 to 1.25 times as much. Four rows have 23.5 GiB more, and at "
    "those ratios 77 to 84 of the 79.1 that PyTorch has there: FSDP1 gathers and reduces on streams of its own, whose "
    "blocks the allocator does not hand to others, as in the figures of kind `device`. The upper end of the sixth is "
    "1.3 GiB below the limit. That of prime-rl-bench (0.80 of it) is LoRA of a mixture, explained above: 22 bytes for "
    "each element of rows that go to experts, of rows of 65,536 tokens.",
    "**Came to an end, forecast not to fit.** The two of fsdp_qlora held 22.54 of the 23.51 GiB that PyTorch prints of "
    "an RTX 4090, with what lies outside the allocator; their upper ends are 0.2 % above that.",
)


def unexplained(comparisons: Iterable[Comparison], feasibility: Iterable[Feasibility] = ()) -> list[str]:
    """What is far off with nothing said about it: source, grade and kind of figures; rows that fit or do not."""
    told = FALSE_FITS | FALSE_REFUSALS
    wrong = [
        f.row_id for f in feasibility if f.ran != f.fits and (f.grade == "A" or not f.ran) and f.row_id not in told
    ]
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault((c.source, c.grade, c.kind), []).append(c)
    far_off = [
        f"{source} {grade} {kind}"
        for (source, grade, kind), group in sorted(groups.items())
        if _is_large(group) and not any(one.covers(group[0]) for one in REMAINDERS)
    ]
    return [*far_off, *wrong]


def remains(memory: Sequence[Comparison], throughput: Sequence[Comparison], *, fitted: tuple[str, ...]) -> str:
    """The section of the page.

    Args:
        memory: every figure of memory.
        throughput: every figure of tokens per second.
        fitted: sources that constants were fitted to.
    """
    paragraphs = [
        f"A paragraph for every source whose median error is above {LARGE_MEDIAN:.0%} or whose P90 is above "
        f"{LARGE_P90:.0%}, and for the driver's figures.".replace("%", " %"),
        *(_paragraph(one, [c for c in (*memory, *throughput) if one.covers(c)]) for one in REMAINDERS),
        *_FITS,
        *_elsewhere(throughput, fitted=fitted),
    ]
    wrapped = (textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False) for text in paragraphs)
    return "\n\n".join(["## What remains, and why", *wrapped]) + "\n"


def _paragraph(one: Remainder, found: Sequence[Comparison]) -> str:
    summary = summarise(c.error for c in found)
    figures = "no figure is compared" if summary is None else _figures(summary)
    return (
        f"**{', '.join(one.sources)}, {one.kind}** ({figures}). Known: {one.known}. Supposed: {one.supposed}. Would "
        f"decide: {one.decides}."
    )


def _figures(summary: Summary) -> str:
    counted = "1 figure" if summary.count == 1 else f"{summary.count} figures"
    return f"{counted}, median error {summary.median:.1%}, bias {summary.bias:+.1%}".replace("%", " %")


def _elsewhere(throughput: Iterable[Comparison], *, fitted: tuple[str, ...]) -> Iterator[str]:
    """How far off times are of sources that nothing was fitted to, with those above and without them."""
    free = [c for c in throughput if c.grade == "A" and c.source not in fitted]
    told = {source for one in REMAINDERS if one.kind == TOKENS for source in one.sources}
    whole, others = (summarise(c.error for c in some) for some in (free, [c for c in free if c.source not in told]))
    if whole is None or others is None:
        return
    yield (
        f"Times of sources that nothing was fitted to are off by a median of {whole.median:.1%} in {whole.count} "
        f"figures of grade A; without the sources of the paragraphs above by {others.median:.1%} in {others.count}. "
        "Other stacks on other hosts are what is not forecast, more than other GPUs or sizes."
    ).replace("%", " %")


def _is_large(group: Sequence[Comparison]) -> bool:
    summary = summarise(c.error for c in group)
    return summary is not None and (summary.median > LARGE_MEDIAN or summary.p90 > LARGE_P90)
