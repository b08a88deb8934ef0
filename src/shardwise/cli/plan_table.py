"""A plan for people: the candidates as a table, why the chosen one, and why not each of the others."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardwise.cli.plan_answers import print_answers
from shardwise.spec.layout import Layout
from shardwise.spec.plan import PARTS, Candidate, Cost, Plan, RankMemory
from shardwise.units import format_bytes, format_count, format_seconds

MAX_CANDIDATES = 10
MAX_REJECTED = 12
#: From the widest to the narrowest: which columns are left out, and how long the bars are.
FORMS: tuple[tuple[frozenset[str], int], ...] = (
    (frozenset(), 24),
    (frozenset(), 12),
    (frozenset({"cost"}), 12),
    (frozenset({"recompute", "offload", "cost"}), 12),
    (frozenset({"recompute", "offload", "cost", "layout"}), 12),
)

COLUMNS: dict[str, Literal["left", "right"]] = {
    "strategy": "left",
    "layout": "left",
    "batch": "right",
    "recompute": "left",
    "offload": "left",
    "peak": "right",
    "memory of one GPU": "left",
    "step": "right",
    "tokens/s": "right",
    "GPU": "right",
    "cost": "right",
}

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
    """The whole plan, what was asked beyond it first."""
    print_answers(plan, console)
    console.print(headline(plan), style="bold")
    for note in plan.notes:
        console.print(hanging(note, "  ! ", width=console.width))
    if plan.candidates:
        console.print()
        console.print(_fitting_table(plan, console))
        console.print(_legend(), style="dim")
    console.print()
    console.print(verdict(plan))
    for reason in why(plan):
        console.print(hanging(reason, "  - ", width=console.width))
    _print_rejected(plan, console)


def hanging(text: str, mark: str, *, width: int) -> str:
    """A paragraph whose further lines are as far in as its first words."""
    return textwrap.fill(text, width=width, initial_indent=mark, subsequent_indent=" " * len(mark))


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


def _fitting_table(plan: Plan, console: Console) -> Table:
    """The widest form that the console has room for."""
    unbounded = console.options.update(max_width=10_000)
    tables = [candidate_table(plan, left_out=left_out, bar_width=bar_width) for left_out, bar_width in FORMS]
    fitting = (table for table in tables if Measurement.get(console, unbounded, table).maximum <= console.width)
    return next(fitting, tables[-1])


def candidate_table(plan: Plan, *, left_out: frozenset[str], bar_width: int) -> Table:
    """One row per candidate, the chosen one marked; offloads where there are any."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    if all(candidate.execution.offload == "none" for _, candidate in _shown(plan)):
        left_out |= {"offload"}
    names = [name for name in COLUMNS if name not in left_out]
    for name in names:
        table.add_column(name, justify=COLUMNS[name], no_wrap=True, overflow="crop")
    for index, candidate in _shown(plan):
        cells, chosen = _cells(candidate, bar_width=bar_width), index == plan.chosen
        table.add_row("->" if chosen else "", *(cells[name] for name in names), style="bold" if chosen else "")
    return table


def _shown(plan: Plan) -> list[tuple[int, Candidate]]:
    """The first ones, and the chosen one in any case."""
    numbered = list(enumerate(plan.candidates))
    return [pair for pair in numbered if pair[0] < MAX_CANDIDATES or pair[0] == plan.chosen]


def _cells(candidate: Candidate, *, bar_width: int) -> dict[str, str | Text]:
    execution, memory, time = candidate.execution, candidate.memory, candidate.time
    return {
        "strategy": execution.layout.strategy,
        "layout": execution.layout.written,
        "batch": f"{execution.micro_batch_size}x{execution.gradient_accumulation_steps}",
        "recompute": execution.gradient_checkpointing,
        "offload": execution.offload,
        "peak": format_bytes(memory.peak_bytes) if candidate.fits else f"{format_bytes(memory.peak_bytes)} !",
        "memory of one GPU": memory_bar(worst_rank(candidate), capacity=memory.capacity_bytes, width=bar_width),
        "step": format_seconds(time.step_seconds),
        "tokens/s": format_count(time.tokens_per_second),
        "GPU": f"{100 * time.gpu_utilization:.0f} %",
        "cost": cost_text(candidate.cost),
    }


def cost_text(cost: Cost) -> str:
    """The price of the run, else of an hour, else a dash."""
    if cost.usd is not None:
        return _dollars(cost.usd)
    return f"{_dollars(cost.usd_per_hour)}/h" if cost.usd_per_hour is not None else "-"


def _dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount < 1000 else f"${amount:,.0f}"


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
    peak = "peak: as expected, where `at most` decides"
    return f"{parts}  . free; {peak}; batch: micro-batch x accumulation; GPU: share of time that it is busy"


def verdict(plan: Plan) -> str:
    """What was chosen, or that nothing fits."""
    if plan.best is None:
        return f"nothing fits on {plan.hardware.get('name', 'this machine')}"
    layout = plan.best.execution.layout
    return f"{'forecast only' if plan.best.not_trained else 'chosen'}: {_named(layout.strategy, layout)}"


def _named(strategy: str, layout: Layout) -> str:
    return f"{strategy} ({layout.written})" if layout.world_size > 1 else strategy


def why(plan: Plan) -> list[str]:
    """The reasons of the chosen candidate and what the run takes; or what would fit."""
    if plan.best is None:
        return list(plan.advice)
    seconds, cost = plan.best.time.total_seconds, plan.best.cost
    price = f" and costs {cost_text(cost)}" if cost.usd is not None else ""
    packed = (
        "; each row counts as one sequence, of which packing makes fewer" if plan.job["data"].get("packing") else ""
    )
    whole = [] if seconds is None else [f"the whole run takes about {format_seconds(seconds)}{price}{packed}"]
    warnings = [f"PLANNED, NOT TRAINED: {sentence}" for sentence in plan.best.not_trained]
    return [*warnings, *plan.best.reasons, *whole]


def _print_rejected(plan: Plan, console: Console) -> None:
    if not plan.rejected:
        return
    console.print()
    console.print("not chosen:")
    # Several layouts are rejected for one reason; it is said once.
    named: dict[str, dict[str, None]] = {}
    for rejection in plan.rejected:
        named.setdefault(rejection.reason, {})[_named(rejection.strategy, rejection.layout)] = None
    for reason, names in list(named.items())[:MAX_REJECTED]:
        console.print(hanging(f"{', '.join(names)}: {reason}", "  ", width=console.width))
    if len(named) > MAX_REJECTED:
        left = sum(len(names) for names in list(named.values())[MAX_REJECTED:])
        console.print(f"  ... and {left} more; --json lists all")


def ranks_text(ranks: Sequence[int]) -> str:
    """`0-3`, `0`, `0, 2, 5-7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)
