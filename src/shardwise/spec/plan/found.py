"""What was looked for and found: the value that `--solve` asks for, and the largest micro-batch"""

from dataclasses import dataclass
from typing import Literal

from shardwise.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class BatchTrial:
    """Optimizer steps that were taken with a micro-batch.

    Attributes:
        peak_bytes: the most that a rank took, on a GPU reserved and with the context; None where
            one ran out of memory.
        forecast_bytes: the same, as it was forecast.
    """

    micro_batch_size: int
    fits: bool
    peak_bytes: int | None
    forecast_bytes: int

    @property
    def took(self) -> str:
        """What came of it, in words."""
        return "ran out of memory" if self.peak_bytes is None else f"took {format_bytes(self.peak_bytes)}"


@dataclass(frozen=True, kw_only=True)
class FoundBatch:
    """What `train --find-batch` tried, in order. `share`: sequences of the global batch by rank."""

    capacity_bytes: int
    share: int
    tried: tuple[BatchTrial, ...]

    @property
    def best(self) -> BatchTrial | None:
        """The largest that fits."""
        return max((one for one in self.tried if one.fits), key=lambda one: one.micro_batch_size, default=None)

    @property
    def next(self) -> BatchTrial | None:
        """The smallest that does not fit."""
        return min((one for one in self.tried if not one.fits), key=lambda one: one.micro_batch_size, default=None)

    @property
    def sentence(self) -> str:
        """What was tried, and what fits, with the forecast beside it."""
        tried, best, beyond = ", ".join(str(one.micro_batch_size) for one in self.tried), self.best, self.next
        of = f"of {format_bytes(self.capacity_bytes)}"
        if best is None:
            least = min(self.tried, key=lambda one: one.micro_batch_size)
            return f"tried micro-batches {tried}: none fits; {least.micro_batch_size} {least.took} {of}"
        found = (
            f"tried micro-batches {tried}: {best.micro_batch_size} is the largest that fits, measured "
            f"{format_bytes(best.peak_bytes or 0)} {of}, forecast {format_bytes(best.forecast_bytes)}"
        )
        if beyond is not None:
            return f"{found}; {beyond.micro_batch_size} {beyond.took}"
        return f"{found}; it is a rank's share of the global batch"


Extreme = Literal["largest", "smallest"]


@dataclass(frozen=True, kw_only=True)
class Following:
    """The nearest value that does not fit, and what it lacks."""

    value: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A value, and whether the job fits with it."""

    value: int
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Solved:
    """What `--solve` asked and what came out. Its plan is that of the job with this value.

    Attributes:
        key: as the job file writes it, `data.max_length`; or `gpus`.
        asks: which of the values that fit is asked for.
        value: that one; None where no value fits.
        written: the value as people write it: `8x H100-SXM` for 8 GPUs.
        bounds: the first and the last value that were open.
        limit: why there is none beyond, as a sentence.
        next: None where the last one fits.
        tried: every value that was tried, in that order.
    """

    key: str
    asks: Extreme
    value: int | None
    written: str
    bounds: tuple[int, int]
    limit: str
    next: Following | None
    tried: tuple[Tried, ...] = ()

    @property
    def sentence(self) -> str:
        """The answer, and what stands in the way of a better one."""
        what = "fewest GPUs that it fits on" if self.key == "gpus" else f"{self.asks} {self.key} that fits"
        if self.next is None:
            return f"{what}: {self.written}" + (f"; {self.limit}" if self.asks == "largest" else "")
        if self.value is None:
            return f"no {self.key} from {self.bounds[0]} to {self.bounds[1]} fits: {self.next.reason}"
        beyond = f"on {self.next.value} of them" if self.key == "gpus" else f"with {self.next.value}"
        return f"{what}: {self.written}; {beyond}: {self.next.reason}"
