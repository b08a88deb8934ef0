"""What rehearsing a plan finds: for each distinct rank the peak of the training code on tensors without numbers, beside
the forecast of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import RankMemory


@dataclass(frozen=True, kw_only=True)
class Rehearsing:
    """The rehearsal of the next distinct rank begins. `strategy`: of the layout; `number`: of `total`, from 1."""

    strategy: str
    rank: int
    number: int
    total: int


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Alike tensors that are alive at the peak. `maker`: the function that asked for them; `bytes`: of all."""

    part: str
    maker: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class RankRehearsal:
    """A distinct rank's rehearsal.

    Attributes:
        ranks: whom it holds for; the first was rehearsed.
        forecast: the planner's, of the same ranks.
        held: bytes between steps of `weights` and `optimizer`, and `gradients` as backward leaves them.
        peak_bytes: the most that is alive at one instant, with what lies outside of the training code.
        peak_reserved_bytes: by the allocator's rules.
        parts: bytes alive at that instant, by the names of `spec.plan.forecast.PARTS`.
        instants: the most that was alive at each instant, without what lies outside.
        tensors: the largest groups at the peak.
    """

    ranks: tuple[int, ...]
    forecast: RankMemory
    held: dict[str, int]
    peak_bytes: int
    peak_reserved_bytes: int
    peak_instant: str
    parts: dict[str, int]
    instants: dict[str, int]
    tensors: tuple[TensorGroup, ...]

    @property
    def ratio(self) -> float:
        """The forecast's peak over the rehearsed one."""
        return self.forecast.peak_bytes / self.peak_bytes


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A plan's rehearsal. `hardware`: its name; `capacity_bytes`: what a rank may use of it."""

    hardware: str
    capacity_bytes: int
    execution: Execution
    ranks: tuple[RankRehearsal, ...]
    seconds: float

    @property
    def worst(self) -> RankRehearsal:
        """The rank with the highest peak."""
        return max(self.ranks, key=lambda rank: rank.peak_bytes)

    @property
    def reserved_bytes(self) -> int:
        """What the rank reserves that reserves most."""
        return max(rank.peak_reserved_bytes for rank in self.ranks)

    @property
    def fits(self) -> bool:
        """Whether what every rank reserves is there."""
        return self.reserved_bytes <= self.capacity_bytes

    def to_json(self) -> dict[str, Any]:
        """Plain data, with a version."""
        ranks = [{**asdict(rank), "ratio": rank.ratio} for rank in self.ranks]
        whole = {"hardware": self.hardware, "capacity_bytes": self.capacity_bytes, "fits": self.fits}
        return {"version": 1, **whole, **self.execution.to_json(), "ranks": ranks, "seconds": self.seconds}
