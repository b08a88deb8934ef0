"""Progress of a training: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from shardwise import api
from shardwise.api import Notice, Phase, Planned, StepMetrics
from shardwise.spec.plan.found import FoundBatch
from shardwise.units import format_bytes, format_count, format_ranks, format_seconds

#: The remaining time is estimated from this many last steps.
WINDOW = 20


@dataclass(kw_only=True)
class State:
    """What is known of the run so far; `seconds`: of the last steps."""

    phase: str = "starting"
    since: float = field(default_factory=time.monotonic)
    total_steps: int | None = None
    last: StepMetrics | None = None
    seconds: list[float] = field(default_factory=list[float])

    def take(self, update: Phase | StepMetrics) -> None:
        """Adds one update."""
        if isinstance(update, Phase):
            self.phase, self.since = update.name, time.monotonic()
            self.total_steps = update.total_steps or self.total_steps
            return
        self.last = update
        if update.step_seconds is not None:
            self.seconds = [*self.seconds, update.step_seconds][-WINDOW:]

    @property
    def remaining_seconds(self) -> float | None:
        """Steps left times the mean time of the last steps; None where either is unknown."""
        if self.total_steps is None or self.last is None or not self.seconds:
            return None
        return (self.total_steps - self.last.step) * sum(self.seconds) / len(self.seconds)


class ProgressDisplay:
    """Shows updates on a console, as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state = State()
        self._logging_steps = 1
        self._live: Live | None = None
        self._planned: tuple[str, FoundBatch | None] | None = None
        self._gone = False

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, update: api.Update) -> None:
        """Shows one update; nothing after the console is closed."""
        if self._gone:
            return
        try:
            if isinstance(update, Planned):
                self._show_plan(update)
            elif isinstance(update, Notice):
                self._console.print(f"warning: {update.text}", soft_wrap=self._live is None)
            else:
                self._state.take(update)
                self._show_live() if self._console.is_terminal else self._show_line(update)
        except OSError:
            self._gone = True

    def _show_line(self, update: Phase | StepMetrics) -> None:
        if isinstance(update, Phase):
            known = {"total_steps": update.total_steps} if update.total_steps is not None else {}
            facts = [f"{name.replace('_', ' ')} {value}" for name, value in {**known, **update.detail}.items()]
            self._console.print(", ".join([update.name, *facts]))
            return
        due = update.step in (1, self._state.total_steps) or update.step % self._logging_steps == 0
        if due or update.eval_loss is not None:  # `step 20/200  loss 2.31  grad norm 1.2 ...`
            self._console.print("  ".join(f"{name} {value}" for name, value in figures(update, self._state)))

    def _show_plan(self, planned: Planned) -> None:
        self._logging_steps = planned.plan.job["train"]["logging_steps"]
        lines = plan_lines(planned)
        # The plan is made again once the rows are counted; it is shown again only if it changed.
        key = (lines[0], planned.plan.found_batch)
        if key != self._planned:
            for line in lines:
                self._console.print(line)
            self._planned = key

    def _show_live(self) -> None:
        if self._state.phase == "preparing data":
            self._console.print("preparing data")
            return
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, get_renderable=lambda: panel(self._state))
            self._live.start()
        self._live.refresh()


def plan_lines(planned: Planned) -> list[str]:
    """What will run, why, and how much memory each rank will need."""
    best = planned.plan.best
    if best is None:
        return ["nothing fits"]
    execution, memory = best.execution, best.memory
    lines = [
        f"{execution.layout.strategy} ({execution.layout.written}), micro-batch {execution.micro_batch_size} x "
        f"{execution.gradient_accumulation_steps} accumulation, recompute {execution.gradient_checkpointing}, "
        f"precision {execution.precision}"
    ]
    lines += [f"  ! {note}" for note in planned.plan.notes]
    lines += [f"  - {reason}" for reason in best.reasons]
    of = f"of {format_bytes(memory.capacity_bytes)}"
    lines += [
        f"  - forecast for {format_ranks(one.ranks)}: {format_bytes(one.peak_bytes)} {of}" for one in memory.ranks
    ]
    return [*lines, f"  - run directory: {planned.run.root}"]


def figures(step: StepMetrics, state: State) -> list[tuple[str, str]]:
    """What is known of a step, by name."""
    total = f"/{state.total_steps}" if state.total_steps else ""
    left = state.remaining_seconds
    rows: list[tuple[str, float | None, Callable[[float], str]]] = [
        ("loss", step.loss, "{:.4f}".format),
        ("eval loss", step.eval_loss, "{:.4f}".format),
        ("grad norm", step.grad_norm, "{:.3g}".format),
        ("skipped at loss scale", step.loss_scale if step.skipped else None, "{:.10g}".format),
        ("lr", step.learning_rate, "{:.2e}".format),
        ("tokens/s", step.tokens_per_second, format_count),
        ("memory", step.peak_memory_bytes, format_bytes),
        ("left", None if left is None else max(0.0, left), format_seconds),
    ]
    known = [(name, write(value)) for name, value, write in rows if value is not None]
    return [("step", f"{step.step}{total}"), *known]


def panel(state: State) -> Panel:
    """The live view: the phase, the progress, and the last step's figures."""
    shown: RenderableType = "no step yet"
    if state.last is not None:  # as many columns as the terminal has room for; none is cut
        cells = [Text.assemble((f"{name} ", "dim"), value) for name, value in figures(state.last, state)]
        shown = Columns(cells, padding=(0, 3))
    waited = format_seconds(time.monotonic() - state.since)
    title = f"{state.phase} ({waited})"
    if state.phase == "stopping":
        title = f"stopping after this step, then saving ({waited}); ask again to end at once"
    return Panel(shown, title=title, title_align="left", subtitle=_bar(state), subtitle_align="left", expand=False)


def _bar(state: State, *, width: int = 40) -> str | None:
    if state.last is None or not state.total_steps:
        return None
    done = min(width, round(width * state.last.step / state.total_steps))
    return "#" * done + "-" * (width - done) + f" {100 * state.last.step / state.total_steps:.0f} %"
