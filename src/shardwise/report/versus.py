"""One job under several layouts: what each run measured, its forecast beside it, fastest first."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from shardwise.report.contents import Comparison, RankReport, Report
from shardwise.report.run_files import WARM_UP_STEPS
from shardwise.report.written import MISSING, NOMINAL_TIMES, write_seconds
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory

VERSION = 1

COLUMNS = ("GPU utilisation", "step time", "total time", "throughput", "peak memory")


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Pipeline stages work one at a time: a sequential schedule, or one micro-batch per step."""

    stages: int
    because: Literal["schedule", "micro-batch"]


#: What overlaps the stages' work.
INSTEAD = {
    "schedule": "pp overlaps several micro-batches; ddp and fsdp keep every GPU busy all the time",
    "micro-batch": "its step has one micro-batch: a smaller train.micro_batch_size makes several, which overlap",
}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A layout's run, such as `fsdp-2`; `turns`: only one stage works at a time."""

    layout: str
    processes: int
    strategy: str | None
    run: str
    num_steps: int
    figures: tuple[Comparison, ...]
    ranks: tuple[RankReport, ...]
    final_loss: float | None
    final_eval_loss: float | None
    turns: Turns | None = None
    resumed: bool = False

    @property
    def name(self) -> str:
        """The layout, with the strategy where its name does not say it."""
        return f"{self.layout} ({self.strategy})" if self.layout.startswith("job-") else self.layout

    def figure(self, what: str) -> Comparison:
        """One of `COLUMNS`."""
        return self.figures[COLUMNS.index(what)]

    @property
    def final_loss_written(self) -> str:
        """The final loss as text."""
        return MISSING if self.final_loss is None else f"{self.final_loss:.4f}"

    @property
    def step_seconds(self) -> float | None:
        """Measured time of a step."""
        return self.figure("step time").measured


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A layout whose run failed, and the first cause."""

    layout: str
    run: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Versus:
    """The comparison, the fastest layout first. `unable`: (layout, reason) of those that cannot run
    here; `nominal`: the forecasts use rates that were not measured on this machine; `apart`: how
    the runs' jobs differ, if they do: then none is the fastest."""

    job: str
    contenders: tuple[Contender, ...]
    unable: tuple[tuple[str, str], ...] = ()
    failed: tuple[Failed, ...] = ()
    nominal: bool = False
    apart: str = ""

    @property
    def sentence(self) -> str:
        """Which is the fastest, by what ratio, and what failed."""
        if self.apart:
            return self.apart
        said = "no layout has measured the time of a step"
        if timed := [(one.layout, one.step_seconds) for one in self.contenders if one.step_seconds]:
            (fastest, seconds), *others = timed
            ratios = [f"{slower / seconds:.2f} times as fast as {name}" for name, slower in others]
            said = ", ".join([f"{fastest} is the fastest: {write_seconds(seconds)} per step", *ratios])
        failed = ", ".join(one.layout for one in self.failed)
        return f"{said}; {failed} failed" if failed else said

    @property
    def notes(self) -> tuple[str, ...]:
        """What explains the figures of the table."""
        said = [
            f"{one.layout}: one of its {one.turns.stages} stages works at a time while the others wait, so each GPU is "
            f"busy for at most about 1/{one.turns.stages} of a step; {INSTEAD[one.turns.because]}"
            for one in self.contenders
            if one.turns is not None
        ]
        if any(one.num_steps <= WARM_UP_STEPS for one in self.contenders):
            slow = f"runs of {WARM_UP_STEPS} steps or fewer count their first steps, which are slow"
            said.append(f"{slow}; --steps {WARM_UP_STEPS + 10} says more")
        if resumed := ", ".join(one.layout for one in self.contenders if one.resumed):
            said.append(f"{resumed}: stopped and resumed; its total time is that of its steps, without loading")
        return (*said, *([NOMINAL_TIMES] if self.nominal else []))

    def to_json(self) -> dict[str, Any]:
        """The content of compare.json; keys are added, never renamed."""
        plain = asdict(self)
        for entry, one in zip(plain["contenders"], self.contenders, strict=True):
            entry["figures"] = {figure.what: figure.to_json() for figure in one.figures}
        plain["unable"] = [{"layout": layout, "reason": reason} for layout, reason in self.unable]
        return {"version": VERSION, "sentence": self.sentence, "notes": list(self.notes), **plain}


def _turns_of(execution: Execution | None) -> Turns | None:
    """Whether only one stage of an execution works at a time, and why."""
    if execution is None or (stages := execution.layout.pp) == 1:
        return None
    if execution.layout.schedule == "sequential":
        return Turns(stages=stages, because="schedule")
    return Turns(stages=stages, because="micro-batch") if execution.gradient_accumulation_steps == 1 else None


def contender(
    layout: str, *, processes: int, run: RunDirectory, report: Report, execution: Execution | None = None
) -> Contender:
    """One finished run, from its report; `execution` where it is known."""
    figures = [report.comparison(name) for name in COLUMNS]
    return Contender(
        layout=layout,
        processes=processes,
        strategy=report.strategy,
        run=str(run.root),
        num_steps=report.outcome.step,
        figures=tuple(figure for figure in figures if figure is not None),
        ranks=report.memory.ranks,
        resumed=report.resumed,
        final_loss=report.curves["loss"].last,
        final_eval_loss=report.curves["eval_loss"].last,
        turns=_turns_of(execution),
    )


def ranked(contenders: Sequence[Contender]) -> tuple[Contender, ...]:
    """Sorted by step time; a run without a measured step comes last."""
    return tuple(sorted(contenders, key=lambda one: float("inf") if one.step_seconds is None else one.step_seconds))
