"""Solved: the value of a key that a job was solved for, and what the next value lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import ConfigDict

from shardwise.spec.job.strict import OPEN

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
    """What was asked by `--solve`, and what came out. The plan it belongs to is that of the job with this value.

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

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

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
