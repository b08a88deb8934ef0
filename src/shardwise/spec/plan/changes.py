"""A run as it is planned, and the same job with one change: time, cost and drawback."""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class RunForecast:
    """The whole run.

    Attributes:
        rows_from: `stated` (data.num_rows), `counted` (by preparation), `sampled` (counted lines,
            lengths of some) or `max_steps`, which needs no rows; None where nothing is known.
        num_rows: to train on; None where they are not known.
        num_steps, seconds, usd: None where they are not known.
        sentence: all of it, or what to say for it to be known.
    """

    rows_from: Literal["stated", "counted", "sampled", "max_steps"] | None
    num_rows: int | None
    num_steps: int | None
    seconds: float | None
    usd: float | None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class PlannedChange:
    """A job with one change, planned.

    Attributes:
        name: the change in words.
        sets: the keys that it sets, as after `--set`: {"train.optimizer": "adamw_8bit"}.
        hardware: what this is planned on; all of what the job names, where the change is another.
        written: the layout's degrees.
        offload: of the chosen execution, as `micro_batch_size` and `gradient_checkpointing` are.
        at_least: costs are at the lowest offer, a floor.
        drawback: what is lost; None where nothing is.
        reason: why nothing fits, where nothing does: figures are None then.
        sentence: what it takes beside the plan, with its drawback.
    """

    name: str
    sets: dict[str, Any] = field(default_factory=dict[str, Any])
    hardware: str
    fits: bool
    strategy: str | None = None
    written: str | None = None
    micro_batch_size: int | None = None
    gradient_checkpointing: str | None = None
    offload: str | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    total_seconds: float | None = None
    usd: float | None = None
    usd_per_hour: float | None = None
    at_least: bool = False
    peak_bytes: int | None = None
    capacity_bytes: int | None = None
    drawback: str | None = None
    reason: str | None = None
    sentence: str
