"""Report and its parts: everything the terminal, report.json and the page say, as plain frozen data.

A figure that was not forecast or not measured is None here and a sentence on the page; it is never a zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

VERSION = 1

State = Literal["finished", "stopped", "failed", "unfinished"]
Unit = Literal["bytes", "seconds", "tokens_per_second", "share"]

#: Parts of memory that both sides know, in the order they are drawn. The trainer reads the first two back from live
#: tensors; what is left of its peak is `other`. Gradients are in there: how many of them are alive at the peak depends
#: on the instant, which a measurement does not name.
COMMON_PARTS = ("weights", "optimizer", "other")

#: The forecast's parts that the measured `other` holds together.
OTHER_PARTS = ("gradients", "activations", "logits", "communication", "temporary")

#: What lies outside the allocator, which the allocator's own count cannot see.
OUTSIDE_PART = "context"

#: Types that no tensor between steps has: they are known as configured, all others are read back from live tensors.
CONFIGURED_TYPES = ("compute", "reduction")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the run ended, as far as its files tell.

    Attributes:
        state: `unfinished` is a run that still goes on or was killed: no outcome was written.
        step: last recorded optimizer step; 0 before the first.
        total_steps: steps the run set out to do, where it got far enough to say so.
        phase: last phase that rank 0 announced.
        signal: name of the signal that stopped it.
        failure: first cause: rank, phase, error, message, file and line, in one sentence.
    """

    state: State
    step: int
    total_steps: int | None = None
    phase: str | None = None
    signal: str | None = None
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One named fact in words, such as ("precision", "mixed")."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure, forecast and measured, in `unit`; None is "not forecast" or "not measured".

    Attributes:
        note: why a side is missing, or what the figure covers.
    """

    what: str
    unit: Unit
    forecast: float | None
    measured: float | None
    note: str = ""

    @property
    def error_percent(self) -> float | None:
        """100 (forecast - measured) / measured: positive where the forecast was too high; else None."""
        if self.forecast is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.forecast == 0 else None
        return 100 * (self.forecast - self.measured) / self.measured


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """Memory of one rank.

    Attributes:
        forecast_parts: bytes at the forecast peak by `spec.plan.PARTS`, where the plan has the rank.
        measured_parts: bytes by the names of `COMMON_PARTS`, those that were read back; None where none was.
        forecast_peak_bytes: without the context, which `measured_peak_bytes` cannot see.
        measured_peak_bytes: the most that was allocated at one instant.
        gpu_utilization: share of the steps' time, but for the warm-up.
    """

    rank: int
    forecast_parts: dict[str, int] | None
    measured_parts: dict[str, int] | None
    forecast_peak_bytes: int | None
    measured_peak_bytes: int | None
    gpu_utilization: float | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Memory of all ranks.

    Attributes:
        kind: how it was measured: `cuda_allocated`, `cpu_allocation_events`, or None.
        capacity_bytes: of one device, with the context inside.
        peak_low_bytes, peak_high_bytes: the forecast's interval, with the context inside.
        peak_instant: when the forecast peak is reached, in words.
        worst_rank: the rank whose measured (else forecast) peak is the highest.
    """

    kind: str | None
    capacity_bytes: int | None
    peak_low_bytes: int | None
    peak_high_bytes: int | None
    peak_instant: str | None
    worst_rank: int | None
    ranks: tuple[RankReport, ...]

    @property
    def worst(self) -> RankReport | None:
        """The rank that needs most."""
        return next((rank for rank in self.ranks if rank.rank == self.worst_rank), None)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over the steps.

    Attributes:
        name: its key in metrics.jsonl.
        points: (step, value), thinned for drawing where there were more; first and last are kept.
        num_recorded: points before thinning.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    num_recorded: int

    @property
    def first(self) -> float | None:
        """Value at the first recorded step."""
        return self.points[0][1] if self.points else None

    @property
    def last(self) -> float | None:
        """Value at the last recorded step."""
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, kw_only=True)
class DataCounts:
    """Rows and tokens of one split, as data preparation counted them."""

    split: str
    counts: dict[str, int]
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One prepared row as decoded pieces, each with whether it counts in the loss."""

    where: str
    pieces: tuple[tuple[str, bool], ...]
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that must agree with itself; `passed` is None where there was nothing to check with."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A file that is missing or cannot be used, and what the report lacks for it."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file, or a folder with its whole content, of the run directory."""

    name: str
    num_bytes: int
    what: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """Forecast beside measurement, for one run directory.

    Attributes:
        name: name of the folder.
        model, method, strategy, hardware: in the words of the job, the plan and the catalogue.
        execution: what was chosen to run, setting by setting.
        dtypes: types by what they hold, read back from live tensors but for `CONFIGURED_TYPES`.
        tokens, trained_tokens: of all recorded steps, without padding; trained ones count in the loss.
        comparisons: the run's figures; memory of the worst rank first, part by part.
        resumed: whether a later start went on with what an earlier one had done.
    """

    name: str
    outcome: Outcome
    model: str | None
    method: str | None
    strategy: str | None
    hardware: str | None
    num_parameters: int | None
    num_trainable_parameters: int | None
    execution: tuple[Setting, ...]
    job: tuple[Setting, ...]
    dtypes: tuple[Setting, ...]
    environment: tuple[Setting, ...]
    tokens: int | None
    trained_tokens: int | None
    memory: MemoryReport
    comparisons: tuple[Comparison, ...]
    curves: dict[str, Curve]
    data: tuple[DataCounts, ...]
    examples: tuple[Example, ...]
    checks: tuple[Check, ...]
    gaps: tuple[Gap, ...]
    files: tuple[FileEntry, ...] = field(default=())
    resumed: bool = False

    def comparison(self, what: str) -> Comparison | None:
        """The comparison of that name."""
        return next((row for row in self.comparisons if row.what == what), None)

    def to_json(self) -> dict[str, Any]:
        """The whole of report.json; keys are added, never renamed."""
        plain = asdict(self)
        plain["comparisons"] = [{**asdict(row), "error_percent": row.error_percent} for row in self.comparisons]
        return {"version": VERSION, **plain}
