"""A plan for the terminal: the answer, its reasons, and tables of candidates."""

import re
import textwrap
from collections.abc import Sequence
from itertools import takewhile

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from shardwise.cli.console import figures_table, plain_table
from shardwise.spec.plan.forecast import PARTS, Candidate, Cost, Plan, Sentence, cost_text, kind_of, named, verdict
from shardwise.spec.plan.offers import Offers
from shardwise.units import GIB, format_bytes, format_count, format_seconds, printable

MAX_CANDIDATES = 8
#: Reasons that stand on the one screen; --verbose has all.
MAX_REASONS = 3
LEAST = ("layout", "cost", "recompute", "tokens/s")
#: From the widest to the narrowest: the columns that are left out, and the length of the bars.
FORMS = (((), 24), ((), 12), (("cost",), 12), (("layout",), 12), (LEAST[:2], 12), (LEAST[:3], 12), (LEAST, 8))

WORDS = ("strategy", "layout", "recompute", "offload", "memory of one GPU")
COLUMNS = (*WORDS[:2], "batch", *WORDS[2:4], "peak", WORDS[4], "step", "tokens/s", "MFU", "cost")

#: Columns that are shown where a candidate uses what they are about.
OCCASIONAL = {"recompute": "gradient_checkpointing", "offload": "offload"}

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


def print_plan(plan: Plan, console: Console, *, verbose: bool = False) -> None:
    """The whole plan; `verbose` lists every layout that was not chosen with its reason."""
    _print_answers(plan, console)
    console.print(fill(_headline(plan), width=console.width), style="bold")
    for note in plan.notes:
        console.print(fill(note, "  ! ", width=console.width))
    _print_known_rows(plan, console)
    console.print()
    console.print(fill(verdict(plan), width=console.width), style="bold")
    reasons = why(plan)
    shown = reasons if verbose or plan.best is None else _first_reasons(reasons)
    for reason in shown:
        console.print(fill(reason, "  - ", width=console.width))
    if len(shown) < len(reasons):
        console.print(f"  - {len(reasons) - len(shown)} more with --verbose", style="dim")
    if plan.run is not None and plan.run.num_steps is None and plan.best is not None:
        console.print(f"  - {plan.run.sentence}")
    _print_changes(plan, console)
    if plan.candidates:
        console.print()
        table, bar_width = _fitting_table(plan, console)
        console.print(table)
        console.print(_legend(plan, bar_width=bar_width, width=console.width), style="dim")
        for price in (one for one in reasons if kind_of(one) == "price"):
            console.print(fill(price, width=console.width), style="dim")
        if plan.chance is not None:
            console.print(fill(plan.chance.sentence, width=console.width), style="dim")
    if rejected := (_all_rejected if verbose else _groups_rejected)(plan, width=console.width):
        console.print("\nnot chosen:" if verbose else "\nnot chosen (--verbose lists every reason):")
        console.print("\n".join(rejected))
    console.print()
    console.print(fill(what_next(plan), width=console.width))


def _print_changes(plan: Plan, console: Console) -> None:
    if plan.changes:
        console.print("\nwhat would help:")
    for change in plan.changes:
        console.print(fill(change.sentence, "  + ", width=console.width))
    if not plan.what_if:
        return
    table = figures_table("what if", "layout", "batch", "peak", "step", "run", "cost")
    for one in (change for change in plan.what_if if change.fits):
        run = "-" if one.total_seconds is None else format_seconds(one.total_seconds)
        cost = cost_text(Cost(usd=one.usd, usd_per_hour=one.usd_per_hour, at_least=one.at_least))
        figures = (format_bytes(one.peak_bytes or 0), format_seconds(one.step_seconds or 0), run, cost)
        table.add_row(one.name, one.strategy, f"micro {one.micro_batch_size}", *figures)
    console.print()
    console.print(table)
    for one in (change for change in plan.what_if if not change.fits):
        console.print(fill(one.sentence, "  ", width=console.width))


#: What a plan says of rows that were counted; `shardwise data` says the rest.
OF_ROWS = ("rows", "", "tokens", "lengths", "max_length")


def _print_known_rows(plan: Plan, console: Console) -> None:
    if plan.data is None:
        return
    lines = [*takewhile(lambda line: line[0] in OF_ROWS, plan.data.lines())]
    longest = "the longest of these rows" if plan.data.sampled is None else "rows as long as max_length"
    solved = "memory and time are for rows as long as max_length"
    lines.append(("", solved if plan.solved else f"memory is for {longest}, time for the mean"))
    console.print()
    for name, sentence in lines:
        console.print(fill(printable(sentence), f"  {name:<12}", width=console.width))


def _first_reasons(reasons: Sequence[str]) -> list[str]:
    must = [one for one in reasons if kind_of(one) in ("always", "rehearsed")]
    rest = [one for one in reasons if kind_of(one) in ("", "calibrated")]
    kept = {*must, *rest[: max(0, MAX_REASONS - len(must))]}
    return [one for one in reasons if one in kept]


def fill(text: str, mark: str = "", *, width: int) -> str:
    """A paragraph whose further lines start below its first word."""
    indent = " " * len(mark)
    return textwrap.fill(text, width=width, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)


def _headline(plan: Plan) -> str:
    job = plan.job
    sizes = format_count(plan.model["num_parameters"])
    trained = plan.model.get("num_trainable_parameters")
    share = f", {format_count(trained)} trained" if isinstance(trained, int) and job.get("method") != "full" else ""
    where, train, length = plan.hardware.get("name", "this machine"), job["train"], job["data"]["max_length"]
    pairs = plan.job.get("objective", "sft") not in ("sft", "kto")
    samples = "pairs of sequences" if pairs else "sequences"
    step = f"{train['global_batch_size']} {samples} of at most {length} tokens a step, lr {train['learning_rate']:g}"
    return f"{job['model']} ({sizes} parameters{share}), {job['method']}, on {where}: {step}"


def why(plan: Plan) -> list[str]:
    """The reasons for the chosen candidate and the length of the run; or what would fit."""
    if plan.best is None:
        return list(plan.advice)
    seconds, cost = plan.best.time.total_seconds, plan.best.cost
    price = f" and costs {cost_text(cost)}" if cost.usd is not None else ""
    data = plan.job["data"]
    as_rows = (
        data.get("packing")
        and "objective" not in plan.job
        and (data.get("num_rows") or plan.data is None or not plan.data.train.num_samples)
    )
    packed = "; each row counts as one sequence, and packing makes fewer" if as_rows else ""
    took = f"the whole run takes about {format_seconds(seconds or 0)}{price}{packed}"
    whole = [] if seconds is None else [Sentence(took, "" if packed else "elsewhere")]
    disk = plan.disk
    if disk is not None and disk.total_bytes >= GIB:
        merged = f"; merged/ takes {format_bytes(disk.merged_bytes)} more" if disk.merged_bytes else ""
        holds = f"output_dir holds {format_bytes(disk.total_bytes)} at most: {disk.parts}{merged}"
        whole.append(Sentence(holds, "elsewhere"))
    lacking = (Sentence(f"PLANNED, NOT TRAINED: {sentence}", "always") for sentence in plan.best.not_trained)
    return [*lacking, *plan.best.reasons, *whole]


def what_next(plan: Plan) -> str:
    """The next command."""
    if plan.best is None:
        change = "change what is listed above" if plan.advice else "take a smaller model"
        return f"next: {change}, or let the hardware be chosen: --hardware any"
    if plan.best.not_trained:
        return "next: --html plan.html draws it, --timeline shows one step"
    if not plan.job["data"].get("path"):
        return "next: name your data in a job file and run `shardwise train JOB`; --html plan.html draws this plan"
    counted = plan.data is not None and plan.data.sampled is None
    counts = "" if counted or plan.data_notes else "counts its rows, `shardwise train` "
    first = "data" if counts else "train"
    return f"next: `shardwise {first}` with the same job {counts}runs it; --html plan.html draws this plan"


def _fitting_table(plan: Plan, console: Console) -> tuple[Table, int]:
    """The widest form that the console has room for, and the length of its bars."""
    unbounded = console.options.update(max_width=10_000)
    tables = [(_candidate_table(plan, left_out=left_out, bar_width=width), width) for left_out, width in FORMS]
    fitting = (one for one in tables if Measurement.get(console, unbounded, one[0]).maximum <= console.width)
    return next(fitting, tables[-1])


def _candidate_table(plan: Plan, *, left_out: Sequence[str], bar_width: int) -> Table:
    table = plain_table(show_edge=False)
    table.add_column("", no_wrap=True)
    executions = [candidate.execution for _, candidate in plan.first(MAX_CANDIDATES)]
    unused = {name for name, key in OCCASIONAL.items() if all(getattr(one, key) == "none" for one in executions)}
    names = [name for name in COLUMNS if name not in {*left_out, *unused}]
    for name in names:
        table.add_column(name, justify="left" if name in WORDS else "right", no_wrap=True, overflow="crop")
    for index, candidate in plan.first(MAX_CANDIDATES):
        cells, chosen = _cells(candidate, bar_width=bar_width), index == plan.chosen
        table.add_row("->" if chosen else "", *(cells[name] for name in names), style="bold" if chosen else "")
    return table


def _cells(candidate: Candidate, *, bar_width: int) -> dict[str, str | Text]:
    execution, memory, time = candidate.execution, candidate.memory, candidate.time
    return {
        "strategy": execution.layout.strategy,
        "layout": execution.layout.written,
        "batch": f"{execution.micro_batch_size}x{execution.gradient_accumulation_steps}",
        "recompute": execution.gradient_checkpointing,
        "offload": execution.offload,
        "peak": format_bytes(memory.peak_bytes) if candidate.fits else f"{format_bytes(memory.peak_bytes)} !",
        "memory of one GPU": _memory_bar(candidate, width=bar_width),
        "step": format_seconds(time.step_seconds),
        "tokens/s": format_count(time.tokens_per_second),
        "MFU": f"{100 * time.mfu:.0f} %",
        "cost": cost_text(candidate.cost),
    }


def _memory_bar(candidate: Candidate, *, width: int) -> Text:
    """The parts of the peak against the capacity; what does not fit crosses the bracket."""
    bar, drawn, bytes_before, capacity = Text("["), 0, 0, candidate.memory.capacity_bytes
    for part in PARTS:
        bytes_before += candidate.worst_rank.parts.get(part, 0)
        # Rounding the running sum keeps the bar's end where the peak is, however small the parts.
        end = min(round(width * bytes_before / capacity), width + OVERFLOW) if capacity else 0
        letter, colour = LETTERS[part]
        bar.append(letter * (end - drawn), style=colour)
        if drawn <= width < end:
            inside, beyond = bar.divide([width + 1])
            bar = Text.assemble(inside, "]", beyond)  # the closing bracket stands where the capacity ends
        drawn = end
    if drawn <= width:
        bar.append("." * (width - drawn), style="dim")
        bar.append("]")
    return bar


def _legend(plan: Plan, *, bar_width: int, width: int) -> str:
    shown = [candidate for _, candidate in plan.first(MAX_CANDIDATES)]
    bars = [_memory_bar(one, width=bar_width).plain for one in shown]
    parts = [f"{letter} {part}" for part, (letter, _) in LETTERS.items() if any(letter in bar for bar in bars)]
    over = [] if all(one.fits for one in shown) else ["! too much"]
    entries = [*parts, ". free", *over, "batch: micro-batch x accumulation", "MFU: share of the peak FLOP/s"]
    # No line is broken inside an entry: their spaces stand as one letter while lines are filled.
    whole = "  ".join(entry.replace(" ", "\N{NO-BREAK SPACE}") for entry in entries)
    return fill(whole, width=width).replace("\N{NO-BREAK SPACE}", " ")


def _groups_rejected(plan: Plan, *, width: int) -> list[str]:
    """At most three lines: what fits too, what is too large, and what is not possible."""
    fits = {(one.execution.layout.strategy, one.execution.layout): one.fits for one in plan.candidates}
    groups: dict[str, dict[str, str]] = {"fits too": {}, "too large": {}, "not possible": {}}
    for one in plan.rejected:
        if kind_of(one.reason) == "alone":
            continue
        known = fits.get((one.strategy, one.layout))
        kind = "not possible" if known is None else "fits too" if known else "too large"
        # Or the beginning of a reason, up to its details.
        short = getattr(one.reason, "short", "") or re.split(r" \(|[:;]|, | at most ", one.reason, maxsplit=1)[0]
        groups[kind].setdefault(one.strategy, short)
    return [_listed(kind, group, width=width) for kind, group in groups.items() if group]


def _listed(kind: str, group: dict[str, str], *, width: int) -> str:
    line, room = f"  {kind}: ", width - len(", 99 more")
    for index, (strategy, reason) in enumerate(group.items()):
        entry = f"{', ' if index else ''}{strategy} ({reason})"
        if len(line) + len(entry) > room:
            if index:
                return f"{line}, {len(group) - index} more"
            entry = f"{entry[: room - len(line) - 4]}...)"
        line += entry
    return line


def _all_rejected(plan: Plan, *, width: int) -> list[str]:
    """Every layout that was not chosen; those with one reason share its line."""
    grouped: dict[str, dict[str, None]] = {}
    for one in plan.rejected:
        grouped.setdefault(one.reason, {})[named(one.strategy, one.layout)] = None
    return [fill(f"{', '.join(names)}: {reason}", "  ", width=width) for reason, names in grouped.items()]


NUM_WORDS = 3  # columns of words; the others are figures
WIDE, LEFT_OUT_WHERE_NARROW = 100, ("layout", "lowest/h")


def _print_answers(plan: Plan, console: Console) -> None:
    """The answer first; nothing where a plan was all that was asked for."""
    if plan.solved is not None:
        console.print(f"{plan.solved.sentence}\n", style="bold")
    if plan.offers is not None:
        console.print(f"{plan.offers.sentence}\n", style="bold")
        if plan.offers.shown:
            console.print(_offers_table(plan.offers, width=console.width))
            console.print(plan.offers.prices, style="dim")
        for note in plan.offers.notes():
            console.print(textwrap.fill(note, width=console.width, initial_indent="  ", subsequent_indent="  "))
        console.print()


def _offers_table(offers: Offers, *, width: int) -> Table:
    table = plain_table(show_edge=False)
    names, *rows = offers.table()
    kept = [index for index, name in enumerate(names) if width >= WIDE or name not in LEFT_OUT_WHERE_NARROW]
    for index in kept:
        is_word = index < NUM_WORDS
        table.add_column(names[index], justify="left" if is_word else "right", no_wrap=index == 0 or not is_word)
    for option, row in zip(offers.shown, rows, strict=True):
        table.add_row(*(row[index] for index in kept), style="bold" if option.best_for else "")
    return table
