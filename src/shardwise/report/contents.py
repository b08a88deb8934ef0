"""Report and its parts: what the terminal, report.json and the page show, as frozen dataclasses.

A figure that was not forecast or not measured is None, never zero.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shardwise.report.written import MISSING, Unit, one_line, write_error, write_value
from shardwise.spec.data_facts import DataFacts
from shardwise.units import format_bytes, format_count

VERSION = 1

State = Literal["finished", "stopped", "failed", "running", "unfinished"]
Side = Literal["forecast", "measured"]

#: Parts of memory that both the forecast and the measurement have, in the order they are drawn. The
#: trainer reads weights and optimizer states from live tensors; the rest of its peak, gradients
#: included, is `other`.
COMMON_PARTS = ("weights", "optimizer", "other")
OTHER_PARTS = ("gradients", "activations", "logits", "communication", "temporary")

#: Memory outside the allocator, such as the CUDA context; the allocator does not count it.
OUTSIDE_PART = "context"
#: Types that are known from the configuration only; all others are read from live tensors.
CONFIGURED_TYPES = ("compute", "reduction")


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How the run ended. `state`: `unfinished`: no outcome (running or killed); `running`: a
    process is known to hold it; `failure`: first cause: rank, phase, error, message, file, line."""

    state: State
    step: int
    total_steps: int | None = None
    phase: str | None = None
    signal: str | None = None
    failure: str | None = None

    @property
    def sentence(self) -> str:
        """The state, the last step, and the cause."""
        steps = f"step {self.step:,}" + (f" of {self.total_steps:,}" if self.total_steps else "")
        by = f" by signal {self.signal}" if self.signal else ""
        sentences: dict[State, str] = {
            "finished": f"Finished at {steps}.",
            "stopped": f"Stopped at {steps}{by}. Running the job again resumes it.",
            "failed": f"Failed after {steps}: {self.failure or 'no cause was recorded'}",
            "running": f"Running: {steps}" + (f", phase {self.phase}." if self.phase else "."),
            "unfinished": f"Still running, or killed: {steps}" + (f", last phase {self.phase}." if self.phase else "."),
        }
        return one_line(sentences[self.state])


@dataclass(frozen=True, kw_only=True)
class NamedSetting:
    """A name and its value as text, such as ("precision", "mixed")."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One figure, forecast and measured, in `unit`; None: not known, and the note says why."""

    what: str
    unit: Unit
    forecast: float | None
    measured: float | None
    note: str = ""

    @property
    def error_percent(self) -> float | None:
        """100 (forecast - measured) / measured: positive if the forecast is too high; else None."""
        if self.forecast is None or self.measured is None:
            return None
        if self.measured == 0:
            return 0.0 if self.forecast == 0 else None
        return 100 * (self.forecast - self.measured) / self.measured

    @property
    def error_written(self) -> str:
        """The error as text."""
        return write_error(self.error_percent)

    @property
    def off(self) -> str:
        """How far the forecast was off, as words behind it; empty where that is not known."""
        error = self.error_percent
        if error is None:
            return ""
        if abs(error) < 0.5:
            return ", as measured"
        return f", {abs(error):.0f} % {'above' if error > 0 else 'below'} what was measured"

    def to_json(self) -> dict[str, Any]:
        """With the error."""
        return {**asdict(self), "error_percent": self.error_percent}

    def written(self, side: Side, *, missing: str = MISSING) -> str:
        """The forecast or the measured value with its unit."""
        value = self.forecast if side == "forecast" else self.measured
        return missing if value is None else write_value(value, self.unit)


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """Memory of one rank. `..._parts`: bytes at the peak, forecast by `spec.plan.forecast.PARTS`,
    measured by `COMMON_PARTS`; `..._peak_bytes`: without context; `forecast_seen_bytes`,
    `..._phases` (peaks by `spec.run.PHASES`): for rows measured; `ratios`: forecast ÷ measured of
    `peak`, `peak_seen`, parts, phases; `gpu_utilization`: share of step time after warm-up."""

    rank: int
    forecast_parts: dict[str, int] | None = None
    measured_parts: dict[str, int] | None = None
    forecast_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    gpu_utilization: float | None = None
    forecast_seen_bytes: int | None = None
    forecast_phases: dict[str, int] | None = None
    measured_phases: dict[str, int] | None = None
    ratios: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def written(self) -> str:
        """`87.1 % busy, 21.0 MiB (forecast 20.4 MiB)`."""
        busy = None if self.gpu_utilization is None else f"{write_value(self.gpu_utilization, 'share')} busy"
        peak = None if self.measured_peak_bytes is None else format_bytes(self.measured_peak_bytes)
        forecast = "" if self.forecast_peak_bytes is None else f" (forecast {format_bytes(self.forecast_peak_bytes)})"
        return (", ".join(filter(None, (busy, peak))) or "not measured") + forecast


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Memory of all ranks. `kind`: how it was measured: `cuda_allocated`, `cpu_allocation_events`
    or None; `peak_...`: the forecast's interval with context, and when its peak is reached:
    `backward of layer 31`; `rows_seen`: the longest seen while peaks were measured, in words."""

    kind: str | None
    capacity_bytes: int | None
    peak_low_bytes: int | None
    peak_high_bytes: int | None
    peak_instant: str | None
    worst_rank: int | None
    ranks: tuple[RankReport, ...]
    rows_seen: str | None = None

    @property
    def worst(self) -> RankReport | None:
        """The rank with the highest peak."""
        return next((rank for rank in self.ranks if rank.rank == self.worst_rank), None)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric: (step, value), downsampled from `num_recorded` points; first and last stay."""

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
    """One consistency check; `passed` is None where a file it needs is missing."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A file that is missing or cannot be used, and what the report lacks without it."""

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
    """Forecast beside measurement of a run. `dtypes`: of live tensors, except `CONFIGURED_TYPES`;
    `tokens`, `trained_tokens`, `seconds_in_steps`: of all recorded steps, without padding;
    `comparisons`: memory of the worst rank, part by part, then time; `notes`: what to know when
    both are compared; `skipped_steps`, `loss_scale`: of float16, the last step's; `rows`: what was
    counted of the data; `usd_per_hour`: as planned, of all GPUs."""

    name: str
    outcome: RunOutcome
    model: str | None
    method: str | None
    strategy: str | None
    hardware: str | None
    num_parameters: int | None
    num_trainable_parameters: int | None
    execution: tuple[NamedSetting, ...]
    job: tuple[NamedSetting, ...]
    dtypes: tuple[NamedSetting, ...]
    environment: tuple[NamedSetting, ...]
    tokens: int | None
    trained_tokens: int | None
    memory: MemoryReport
    comparisons: tuple[Comparison, ...]
    curves: dict[str, Curve]
    data: tuple[DataCounts, ...]
    examples: tuple[Example, ...]
    checks: tuple[Check, ...]
    gaps: tuple[Gap, ...]
    files: tuple[FileEntry, ...] = ()
    resumed: bool = False
    notes: tuple[str, ...] = ()
    skipped_steps: int | None = None
    loss_scale: float | None = None
    rows: DataFacts | None = None
    usd_per_hour: float | None = None
    seconds_in_steps: float = 0.0
    last_written: float = 0.0

    def comparison(self, what: str) -> Comparison | None:
        """The comparison of that name."""
        return next((row for row in self.comparisons if row.what == what), None)

    @property
    def usd_so_far(self) -> float | None:
        """What the recorded steps cost; None where no price is known or no step was taken."""
        if self.usd_per_hour is None or not self.seconds_in_steps:
            return None
        return self.usd_per_hour * self.seconds_in_steps / 3600

    @property
    def headline(self) -> str:
        """`llama-3.1-8b, lora, fsdp on 4x RTX-6000-Ada`."""
        ran = f"{self.strategy or 'unknown strategy'} on {self.hardware or 'unknown hardware'}"
        return one_line(", ".join(filter(None, (self.model or "unknown model", self.method, ran))))

    @property
    def model_size(self) -> str:
        """`8.03B parameters, 42M trained (0.52 %)`."""
        total, trained = self.num_parameters, self.num_trainable_parameters
        size = "size not known" if total is None else f"{format_count(total)} parameters"
        return f"{size}, {format_count(trained)} trained ({100 * trained / total:.3g} %)" if trained and total else size

    def to_json(self) -> dict[str, Any]:
        """The content of report.json; keys are added, never renamed."""
        plain = asdict(self)
        plain["comparisons"] = [row.to_json() for row in self.comparisons]
        return {"version": VERSION, **plain}
