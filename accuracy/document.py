"""docs/accuracy.md: what was compared with what, how far off, what is fitted, and what was left out and why."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from accuracy.compare import Compared, Comparison, Feasibility
from accuracy.errors import Summary, summarise
from accuracy.grid.compare import section
from accuracy.grid.elsewhere import elsewhere
from accuracy.remains import remains
from accuracy.rivals import RIVALS
from accuracy.rows import ALLOCATED, DEVICE, KINDS, RESERVED
from accuracy.stacks import TARGETS

#: The kinds that the goal is stated for, in rows of grade A.
STRICT_KINDS = (ALLOCATED, RESERVED)
#: Sources that constants of the timeline were fitted to.
FITTED_FOR_TIME = (
    *("llm-foundry", "fms-acceleration", "trl-1m-2026", "prime-rl-bench"),
    *("torchtitan-commits-2026", "torchtitan-asyncTP-202506"),
)
#: The median error of memory that is asked for.
MEDIAN_GOAL = 0.10
_HEAD = ("figures", "median error", "P90", "within 25 %", "bias")

_OPENING = """\
# How accurate the forecasts are

`make accuracy` wrote this page on {date}. It asks the planner about runs that other people measured and published, with
their settings, and compares. The figures are transcribed with their sources in three tables that lie beside the
repository, not in it (`../shared/published`); where they are absent the command says so.

Errors are relative to what was measured. Bias is the median of the signed errors: above zero, too much is forecast.
P90: nine errors in ten are smaller. Grade A rows state everything that memory depends on, grade B rows lack one or two
inputs that a default configuration fills; grade C rows are not compared.

`make accuracy` asks for every forecast again and measures nothing. What was measured it reads: published figures from
those three tables, our own trainer's from files in `accuracy/grid`, which the commands in their sections write.
Rehearsed peaks are read from there too.
"""

_FITTED = """\
## What is fitted to what
Nothing in the planner is fitted to single rows. What a published stack does otherwise than our trainer is added as a
whole number of tensors of known size (`accuracy/differences.py`), from what its public code does:

| term | size | where it was found |
|---|---|---|
| AdamW over lists of tensors (`foreach`) | one copy of what a rank trains; two in torch 2.0 | PyTorch's code |
| DeepSpeed's engine in 16 bits | masters, moments, buckets, gradients of a step | its code, and its steps on CPUs |
| fused cross entropy that writes over its input | 8 bytes per logit instead of 12 | the kernel's code |
| 4-bit preparation that turns norms to float32 | one more copy of each block's input | fms-acceleration, one GPU |
| FSDP1's hooks on frozen blocks | gradients of block inputs stay | fms-acceleration, LoRA, slope over tokens |
| 4-bit training without PEFT's preparation | what is not quantised in 16 bits, not 32 | the repositories' code |
| torchtitan's selective recompute | keeps every second matrix product | torchtitan's code |
| loss over sliced logits (`loss_parallel`) | 16 bytes per logit of the slice | PyTorch's code |
| loss in tiles | one buffer, gradients of the head in float32 | TRL's code |
| Megatron's weights | 16 bits and never cast; masters and moments sharded | Megatron's code |
| a frozen base in float32 | 2 bytes more for each weight | prime-rl's ModelConfig |
| experts as modules of their own | each can be quantised | transformers 4's code |

So fms-acceleration is where two terms were found, and every other source is a check of them: the rows "without the
stack's terms" are the forecast for our own trainer, unchanged. Of times, shares of peak of A100 and H100 are fitted to
llm-foundry as a whole, and bytes around adapters and of 4-bit weights to fms-acceleration (`plan/rates/kernels.py`);
the row "all but these" has neither.

What decides speed on GPUs beyond these, and where each rule is from. No GPU of ours measured any but the last:

| rule | from | checked on |
|---|---|---|
| which kernel `sdpa` is | PyTorch's code (`sdp_utils.cpp`) | trl-1m-2026, which names it |
| rates of cuDNN, and FlashAttention-2's on Hopper | trl-1m-2026: 1M tokens | torchtitan-202412 |
| rates of FlashAttention-3, and of 2 on Blackwell and workstation cards | prime-rl-bench | nothing else has them |
| llm-foundry's attention is of the first generation | its rows of 512 to 65,536 tokens | that kernel's paper |
| slices: parts are put in order, whole gradients added up | our trainer's code | as the next |
| slices: messages take twice as long in eager steps | torchtitan-commits-2026 | torchtitan-202412 |
| slices: they take no longer in compiled steps | torchtitan-asyncTP-202506 | none |
| experts: rows are gathered, weighted and put back | transformers' code | prime-rl-bench |
| experts: grouped products by tokens of each | prime-rl-bench: 30B-A3B, H100, H200 | INTELLECT-3 there |
| cuDNN with rows of 2048 tokens | our trainer on one H100 (h100-cells.csv) | none |
"""


def write(memory: Compared, throughput: Compared, *, date: str) -> str:
    """The page."""
    parts = [
        _OPENING.format(date=date),
        _memory(memory),
        _feasibility(memory.feasibility),
        _by_target(memory.comparisons),
        _rivals(memory.comparisons),
        section(),
        *filter(None, (elsewhere(),)),
        _throughput(throughput),
        remains(memory.comparisons, throughput.comparisons, fitted=FITTED_FOR_TIME),
        _FITTED,
        _left_out(memory, throughput),
    ]
    return "\n".join(parts)


def strict(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Those that the goal is stated for."""
    return [c for c in comparisons if c.grade == "A" and c.kind in STRICT_KINDS]


def _memory(compared: Compared) -> str:
    chosen = strict(compared.comparisons)
    lines = [
        "## Memory",
        "Grade A, peak allocated or reserved as PyTorch counts them, per GPU.",
        "Goal: median at most 10 %, 90 % within 25 %.",
        "",
        *_table(
            ("rows", *_HEAD),
            [
                ("**all**", *_cells(chosen)),
                ("all, without the stack's terms", *_cells(chosen, of=lambda c: c.plain_error)),
                ("all but fms-acceleration", *_cells(c for c in chosen if c.source != "fms-acceleration")),
                (
                    "all but fms-acceleration, without the stack's terms",
                    *_cells((c for c in chosen if c.source != "fms-acceleration"), of=lambda c: c.plain_error),
                ),
            ],
        ),
        "",
        *_without_fms(chosen),
        "![Memory, forecast over measured](accuracy-memory.svg)",
        "",
        "By source, grade and kind. Kinds are never pooled but for the goal above; `device` is what nvidia-smi saw,",
        "`unstated` figures are compared with what the allocator holds.",
        "",
        *_table(("source", "grade", "kind", *_HEAD), _by_source(compared.comparisons)),
        "",
    ]
    return "\n".join(lines)


def _without_fms(chosen: Iterable[Comparison]) -> list[str]:
    """A sentence, where the median without the largest source is above the goal."""
    found = summarise(c.error for c in chosen if c.source != "fms-acceleration")
    if found is None or found.median <= MEDIAN_GOAL:
        return []
    goal, missed = _percent(MEDIAN_GOAL), _percent(found.median)
    over = f"{100 * (found.median - MEDIAN_GOAL):.1f} points"
    return [f"Without fms-acceleration the goal for the median is missed by {over}: {missed} against {goal}.", ""]


def _by_source(comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    keys = sorted({(c.source, c.grade, KINDS.index(c.kind)) for c in comparisons})
    return [
        (source, grade, KINDS[kind], *_cells(c for c in comparisons if _is(c, source, grade, KINDS[kind])))
        for source, grade, kind in keys
    ]


def _is(c: Comparison, source: str, grade: str, kind: str) -> bool:
    return (c.source, c.grade, c.kind) == (source, grade, kind)


def _feasibility(found: Sequence[Feasibility]) -> str:
    died = [f for f in found if not f.ran]
    ran = [f for f in found if f.ran and f.grade == "A"]
    false_fits, refused = [f for f in died if f.fits], [f for f in ran if not f.fits]
    lines = [
        "## Does it fit?",
        f"{len(died)} runs went out of memory; {len(false_fits)} of them were forecast to fit"
        f"{_named(false_fits)}. {len(ran)} runs of grade A came to an end; {len(refused)} of them were forecast not to "
        f"fit{_named(refused)}. To fit means that the upper end of the forecast's interval does.",
        "",
        f"That is with the terms of each stack. What `plan` says is of our own trainer, without them: of the "
        f"{len(died)}, {sum(f.plain_fits for f in died)} would fit, and of the {len(ran)}, "
        f"{sum(not f.plain_fits for f in ran)} would not.",
        "",
        *_goals(died, ran),
        "",
    ]
    return "\n".join(lines)


def _by_target(comparisons: Sequence[Comparison]) -> str:
    """By the trainer that `plan --for` is asked for."""
    rows = [
        (
            f"`{name}`",
            source,
            *_cells(
                c
                for c in comparisons
                if c.source == source and c.kind != DEVICE and c.deepspeed == (name == "llama-factory")
            ),
        )
        for name, sources in TARGETS.items()
        for source in sources
    ]
    lines = [
        "## As `plan --for` says it",
        "The same figures by the trainer that ran, or that the source stands on, with its loss and its AdamW as the",
        "row states them; goal: within 10 %. The rows of qwen-readme are transformers' Trainer, alone or over",
        "DeepSpeed's engine in 16 bits, as LLaMA-Factory starts it. Axolotl has no published row, nor has DeepSpeed",
        "under `torch_autocast`, which `export --to deepspeed` writes. AutoModel is not",
        "offered: its recipes (0.7.0) ask torch.cuda for a device as they begin, and of its two rows",
        "(nemo-automodel-ac) the unit of one and the sharding of the other are not certain.",
        "",
        *_table(("target", "source", *_HEAD), rows),
        "",
        "Steps on CPU processes (`python -m accuracy.grid.stacks TARGET`), forecast over measured. TRL's loss runs",
        "other code on a CPU, so that its step has no row. DeepSpeed's engine runs on one process and on two, with",
        "what `export --to deepspeed` or `--to llama-factory` writes, but for buckets of a toy's size.",
        "",
        *_table(
            ("target", "version", "layout", "words", "width", "layers", "tokens", "forecast / measured"), _on_a_cpu()
        ),
        "",
    ]
    return "\n".join(lines)


def _on_a_cpu() -> list[tuple[str, ...]]:
    with (Path(__file__).parent / "grid" / "stacks.csv").open(encoding="utf-8", newline="") as file:
        return [
            (
                *(row[key] for key in ("target", "version", "layout", "vocab", "width", "layers")),
                f"{row['rows']} x {row['length']}",
                f"{int(row['forecast']) / int(row['measured']):.2f}",
            )
            for row in csv.DictReader(file)
        ]


def _goals(died: Sequence[Feasibility], ran: Sequence[Feasibility]) -> list[str]:
    if not died or not ran:
        return []
    false_fits, refused = [f for f in died if f.fits], [f for f in ran if not f.fits]
    return [
        f"Called: {_percent(1 - len(false_fits) / len(died))} (goal: 90 %); "
        f"refused: {_percent(len(refused) / len(ran))} (goal: at most 2 %). "
        f"Beyond 5 % of the GPU's memory: {_far([*false_fits, *refused])}.",
    ]


def _far(missed: Sequence[Feasibility]) -> str:
    """Those whose upper end is not near the limit."""
    far = [f"{f.row_id} ({f.filled:.2f} of it)" for f in missed if not 0.95 <= f.filled <= 1.05]
    return ", ".join(far) or "none"


def _named(found: Sequence[Feasibility]) -> str:
    if not found:
        return ""
    by_source: dict[str, list[str]] = {}
    for f in found:
        by_source.setdefault(f.source, []).append(f.row_id.rpartition("-")[2])
    named = (f"{source} {', '.join(rows)}" for source, rows in sorted(by_source.items()))
    return f" ({'; '.join(named)})"


def _rivals(comparisons: Sequence[Comparison]) -> str:
    chosen = [c for c in strict(comparisons) if c.rivals]
    rows = [
        ("Shardwise, without the stack's terms", *_plain(chosen)),
        ("Shardwise, with the stack's terms", *_cells(chosen)),
    ]
    rows += [(rival.name, *_summary_cells(_rival(rival.name, chosen))) for rival in RIVALS]
    adapted = len(strict(comparisons)) - len(chosen)
    sources = [f"- {rival.name}: {rival.source}" for rival in RIVALS]
    lines = [
        "## Beside the formulas of other tools",
        "The same rows, of full training only: none of these tools knows adapters or 4-bit weights, so that the LoRA",
        f"and QLoRA rows ({adapted} of {adapted + len(chosen)}) have one forecast only.",
        "",
        *_table(("tool", *_HEAD), rows),
        "",
        *_ratio(chosen),
        *sources,
        "",
    ]
    return "\n".join(lines)


def _ratio(chosen: Sequence[Comparison]) -> list[str]:
    """What is to be compared: no other tool knows the stack that was measured."""
    ours = summarise(c.plain_error for c in chosen)
    others = [(found.median, rival.name) for rival in RIVALS if (found := _rival(rival.name, chosen)) is not None]
    if ours is None or not others or not ours.median:
        return []
    median, name = min(others)
    return [
        "The first row is the comparison: like the other tools it knows nothing of the stack that was measured. Its",
        f"median error is {ours.median / median:.2f} times that of the best of them, {name}"
        f" ({_percent(ours.median)} and {_percent(median)}).",
        "",
    ]


def _plain(chosen: Iterable[Comparison]) -> tuple[str, ...]:
    return _cells(chosen, of=lambda c: c.plain_error)


def _rival(name: str, chosen: Iterable[Comparison]) -> Summary | None:
    return summarise(c.rivals[name] / c.measured - 1 for c in chosen)


def _throughput(compared: Compared) -> str:
    sources = sorted({(c.source, c.grade) for c in compared.comparisons})
    lines = [
        "## Throughput",
        "Tokens per second over all GPUs. Goal: median at most 20 %.",
        "",
        *_table(
            ("rows", *_HEAD),
            [
                ("**grade A**", *_cells(c for c in compared.comparisons if c.grade == "A")),
                (
                    "grade A, all but the sources that rates are fitted to",
                    *_cells(c for c in compared.comparisons if _held(c)),
                ),
                ("grade B", *_cells(c for c in compared.comparisons if c.grade == "B")),
            ],
        ),
        "",
        "![Throughput, forecast over measured](accuracy-throughput.svg)",
        "",
        *_table(
            ("source", "grade", *_HEAD),
            [
                (source, grade, *_cells(c for c in compared.comparisons if (c.source, c.grade) == (source, grade)))
                for source, grade in sources
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def _held(c: Comparison) -> bool:
    """Whether no constant of the timeline was fitted to this source."""
    return c.grade == "A" and c.source not in FITTED_FOR_TIME


def _left_out(memory: Compared, throughput: Compared) -> str:
    reasons = sorted(
        {*memory.left_out, *throughput.left_out},
        key=lambda reason: (-memory.left_out.get(reason, 0) - throughput.left_out.get(reason, 0), reason),
    )
    rows = [
        (reason, str(memory.left_out.get(reason, 0)), str(throughput.left_out.get(reason, 0))) for reason in reasons
    ]
    lines = [
        "## What is left out",
        f"Of {memory.num_rows} memory rows and {throughput.num_rows} throughput rows, these are not compared:",
        "",
        *_table(("reason", "memory", "throughput"), rows),
        "",
    ]
    return "\n".join(lines)


def _error(c: Comparison) -> float:
    return c.error


def _cells(comparisons: Iterable[Comparison], *, of: Callable[[Comparison], float] = _error) -> tuple[str, ...]:
    return _summary_cells(summarise(of(c) for c in comparisons))


def _summary_cells(summary: Summary | None) -> tuple[str, ...]:
    if summary is None:
        return ("0", "-", "-", "-", "-")
    return (
        str(summary.count),
        _percent(summary.median),
        _percent(summary.p90),
        _percent(summary.within, ".0%"),
        _percent(summary.bias, "+.1%"),
    )


def _percent(share: float, form: str = ".1%") -> str:
    return f"{share:{form}}".replace("%", " %")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows),
    ]
