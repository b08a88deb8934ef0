"""Solved: the value of a key that a job was solved for, and what the next value lacks; to and from JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Extreme = Literal["largest", "smallest"]


@dataclass(frozen=True, kw_only=True)
class Solved:
    """What was asked by `--solve`, and what came out. The plan it belongs to is that of the job with this value.

    Attributes:
        key: as the job file writes it, `data.max_length`; or `gpus`.
        asks: which of the values that fit is asked for.
        value: that one; None where no value fits.
        written: the value as people write it: `8x H100-SXM` for 8 GPUs.
        lowest, highest: the first and the last value that were open.
        limit: why there is none beyond, as a sentence.
        next_value: the nearest value that does not fit; None where the last one does.
        next_reason: what it lacks.
        tried: every value that was tried, in that order, and whether it fits.
    """

    key: str
    asks: Extreme
    value: int | None
    written: str
    lowest: int
    highest: int
    limit: str
    next_value: int | None = None
    next_reason: str | None = None
    tried: tuple[tuple[int, bool], ...] = ()

    @property
    def sentence(self) -> str:
        """The answer, and what stands in the way of a better one."""
        what = "fewest GPUs that it fits on" if self.key == "gpus" else f"{self.asks} {self.key} that fits"
        if self.value is None:
            return f"no {self.key} from {self.lowest} to {self.highest} fits: {self.next_reason}"
        beyond = self.limit if self.next_value is None and self.asks == "largest" else None
        if self.next_value is not None:
            beyond = f"on {self.next_value} of them" if self.key == "gpus" else f"with {self.next_value}"
            beyond = f"{beyond}: {self.next_reason}"
        return f"{what}: {self.written}" + (f"; {beyond}" if beyond else "")

    def to_json(self) -> dict[str, Any]:
        """The `solved` object of plan.json."""
        following = None if self.next_value is None else {"value": self.next_value, "reason": self.next_reason}
        return {
            "key": self.key,
            "asks": self.asks,
            "value": self.value,
            "written": self.written,
            "bounds": [self.lowest, self.highest],
            "limit": self.limit,
            "next": following,
            "tried": [{"value": value, "fits": fits} for value, fits in self.tried],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Solved:
        """The inverse of `to_json`."""
        following = data["next"] or {"value": None, "reason": None}
        return cls(
            key=data["key"],
            asks=data["asks"],
            value=data["value"],
            written=data["written"],
            lowest=data["bounds"][0],
            highest=data["bounds"][1],
            limit=data["limit"],
            next_value=following["value"],
            next_reason=following["reason"],
            tried=tuple((one["value"], one["fits"]) for one in data["tried"]),
        )
