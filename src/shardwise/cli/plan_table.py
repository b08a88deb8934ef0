"""A plan for people: the candidates as a table, why the chosen one, and why not each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwise.spec.layout import AXES, Layout
from shardwise.spec.plan import PARTS, Candidate, Cost, Plan, RankMemory
from shardwise.units import format_bytes, format_count, format_seconds

MAX_CANDIDATES = 10
MAX_REJECTED = 12
NARROW = 100

#: How far a bar may run over its closing bracket; how much too much it is, the figure beside it says.
OVERFLOW = 4

#: Each part of memory has a letter, so that a bar can be read without colours, and a colour.
LETTERS = {
    "weights": ("W", "blue"),
    "gradients": ("G", "magenta"),
    "optimizer": ("O", "yellow"),
    "activations": ("A", "green"),
    "logits": ("L", "cyan"),
    "communication": ("C", "red"),
    "temporary": ("T", "bright_black"),
    "context": ("X", "white"),
}


def print_plan(plan: Plan, console: Console) -> None:
    """The whole plan."""
    console.print(headline(plan), style="bold")
    if plan.candidates:
        console.print()
        console.print(candidate_table(plan, width=console.width))
        console.print(_legend(), style="dim")
    console.print()
    for line in verdict(plan):
        console.print(line)
    _print_rejected(plan, console)


def headline(plan: Plan) -> str:
    """What was asked, in one line."""
    job = plan.job
    sizes = format_count(plan.model["num_parameters"])
    trained = plan.model.get("num_trainable_parameters")
    share = f", {format_count(trained)} trained" if isinstance(trained, int) and job.get("method") != "full" else ""
    batch, length = job["train"]["global_batch_size"], job["data"]["max_length"]
    return (
        f"{job['model']} ({sizes} parameters{share}), {job['method']}, on {plan.hardware.get('name', 'this machine')}: "
        f"{batch} sequences of at most {length} tokens a step"
    )


def candidate_table(plan: Plan, *, width: int) -> Table:
    """One row per candidate, the chosen one marked; a narrow terminal gets fewer columns."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False)
    wide = width >= NARROW
    for name, justify in _columns(wide=wide):
        table.add_column(name, justify=justify, no_wrap=True, overflow="crop")
    bar_width = 24 if wide else 12
    for index, candidate in _shown(plan):
        chosen = index == plan.chosen
        cells = _cells(candidate, wide=wide, bar_width=bar_width)
        table.add_row("->" if chosen else "", *cells, style="bold" if chosen else "")
    return table


def _shown(plan: Plan) -> list[tuple[int, Candidate]]:
    """The first ones, and the chosen one in any case."""
    numbered = list(enumerate(plan.candidates))
    return [pair for pair in numbered if pair[0] < MAX_CANDIDATES or pair[0] == plan.chosen]


def _columns(*, wide: bool) -> list[tuple[str, Any]]:
    columns = [("", "left"), ("strategy", "left"), ("layout", "left"), ("batch", "right"), ("recompute", "left")]
    columns += [("peak", "right"), ("memory of one GPU", "left"), ("step", "right"), ("tokens/s", "right")]
    columns += [("GPU", "right"), ("cost", "right")]
    return [column for column in columns if wide or column[0] not in ("layout", "recompute", "cost")]


def _cells(candidate: Candidate, *, wide: bool, bar_width: int) -> list[str | Text]:
    execution, memory, time = candidate.execution, candidate.memory, candidate.time
    cells: dict[str, str | Text] = {
        "strategy": execution.layout.strategy,
        "layout": layout_text(execution.layout),
        "batch": f"{execution.micro_batch_size}x{execution.gradient_accumulation_steps}",
        "recompute": execution.gradient_checkpointing,
        "peak": format_bytes(memory.peak_bytes) if candidate.fits else f"{format_bytes(memory.peak_bytes)} !",
        "memory of one GPU": memory_bar(worst_rank(candidate), capacity=memory.capacity_bytes, width=bar_width),
        "step": format_seconds(time.step_seconds),
        "tokens/s": format_count(time.tokens_per_second),
        "GPU": f"{100 * time.gpu_utilization:.0f} %",
        "cost": cost_text(candidate.cost),
    }
    return [cells[name] for name, _ in _columns(wide=wide) if name]


def layout_text(layout: Layout) -> str:
    """The axes that do something: `dp_shard=4 tp=2`."""
    return " ".join(f"{axis}={getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1) or "one process"


def cost_text(cost: Cost) -> str:
    """The price of the run, else of an hour, else a dash."""
    if cost.usd is not None:
        return f"${cost.usd:,.2f}"
    return f"${cost.usd_per_hour:,.2f}/h" if cost.usd_per_hour is not None else "-"


def worst_rank(candidate: Candidate) -> RankMemory:
    """The rank that needs most."""
    return max(candidate.memory.ranks, key=lambda rank: rank.peak_bytes)


def memory_bar(rank: RankMemory, *, capacity: int, width: int) -> Text:
    """The parts of the peak against the capacity; what does not fit runs over the closing bracket."""
    bar, drawn, bytes_before = Text("["), 0, 0
    for part in PARTS:
        bytes_before += rank.parts.get(part, 0)
        # Rounding the running sum keeps the bar's end where the peak is, however small the parts.
        end = min(round(width * bytes_before / capacity), width + OVERFLOW) if capacity else 0
        letter, colour = LETTERS[part]
        bar.append(letter * (end - drawn), style=colour)
        if drawn <= width < end:
            bar = _with_edge(bar, at=width + 1)
        drawn = end
    if drawn <= width:
        bar.append("." * (width - drawn), style="dim")
        bar.append("]")
    return bar


def _with_edge(bar: Text, *, at: int) -> Text:
    """Sets the closing bracket where the memory ends."""
    inside, beyond = bar.divide([at])
    return Text.assemble(inside, "]", beyond)


def _legend() -> str:
    parts = "  ".join(f"{letter} {part}" for part, (letter, _) in LETTERS.items())
    return f"{parts}  . free; batch: micro-batch x accumulation; GPU: share of time that it is busy"


def verdict(plan: Plan) -> list[str]:
    """What was chosen and why; or that nothing fits."""
    best = plan.best
    if best is None:
        return [f"nothing fits on {plan.hardware.get('name', 'this machine')}"]
    lines = [f"chosen: {best.execution.layout.strategy} ({layout_text(best.execution.layout)})"]
    lines += [f"  - {reason}" for reason in best.reasons]
    low, high = best.memory.peak_low_bytes, best.memory.peak_high_bytes
    lines.append(
        f"  - the peak lies between {format_bytes(low)} and {format_bytes(high)} of "
        f"{format_bytes(best.memory.capacity_bytes)}, in the {best.memory.peak_instant}"
    )
    if best.time.total_seconds is not None:
        cost = f" and costs {cost_text(best.cost)}" if best.cost.usd is not None else ""
        lines.append(f"  - the whole run takes about {format_seconds(best.time.total_seconds)}{cost}")
    return lines


def _print_rejected(plan: Plan, console: Console) -> None:
    if not plan.rejected:
        return
    console.print()
    console.print("not chosen:")
    # Several executions of one layout are rejected for one reason; it is said once.
    sentences = list(dict.fromkeys((f"{r.strategy} ({layout_text(r.layout)})", r.reason) for r in plan.rejected))
    for name, reason in sentences[:MAX_REJECTED]:
        console.print(Padding(f"{name}: {reason}", (0, 0, 0, 2), expand=False))
    if len(sentences) > MAX_REJECTED:
        console.print(f"  ... and {len(sentences) - MAX_REJECTED} more; --json lists all")


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-3`, `0`, `0, 2, 5-7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
