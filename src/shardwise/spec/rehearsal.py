"""What rehearsing a plan finds: of each distinct rank the training code's peak, and the forecast"""

from dataclasses import asdict, dataclass
from typing import Any

from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import RankMemory
from shardwise.units import format_gib


@dataclass(frozen=True, kw_only=True)
class Rehearsing:
    """The rehearsal of the next distinct rank begins: `number` of `total`, from 1."""

    strategy: str
    rank: int
    number: int
    total: int


@dataclass(frozen=True, kw_only=True)
class TensorGroup:
    """Alike tensors that are alive at the peak. `maker`: what asked for them; `bytes`: of all."""

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
        held: bytes between steps of `weights` and `optimizer`, and `gradients` as backward leaves
            them.
        peak_bytes: the most at one instant, with what lies outside of the training code.
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
    """A plan's rehearsal. `hardware`: its name; `capacity_bytes`: what a rank may use of it;
    `execution`: with eager blocks; `eager_bytes`: what these reserve by forecast beside the
    compiled ones that were chosen, `compiled`; 0 and None where eager ones were."""

    hardware: str
    capacity_bytes: int
    execution: Execution
    ranks: tuple[RankRehearsal, ...]
    seconds: float
    compiled: tuple[RankMemory, ...] | None = None
    eager_bytes: int = 0

    @property
    def worst(self) -> RankRehearsal:
        """The rank with the highest peak."""
        return max(self.ranks, key=lambda rank: rank.peak_bytes)

    @property
    def reserved_bytes(self) -> int:
        """What the rank reserves that reserves most, as the plan runs it."""
        return max(rank.peak_reserved_bytes for rank in self.ranks) - self.eager_bytes

    @property
    def as_planned(self) -> tuple[RankMemory, ...]:
        """Each rank as the plan runs it: without what eager blocks add by forecast."""
        return tuple(
            RankMemory(ranks=one.ranks, peak_bytes=sum(parts.values()), parts=parts)
            for one, planned in zip(self.ranks, self.compiled or [r.forecast for r in self.ranks], strict=True)
            for parts in [_moved(one.parts, one.forecast.parts, planned.parts)]
        )

    @property
    def fits(self) -> bool:
        """Whether what every rank reserves is there."""
        return self.reserved_bytes <= self.capacity_bytes

    @property
    def eager(self) -> str | None:
        """That blocks were rehearsed eager, and what it adds; None where none is compiled."""
        if self.compiled is None:
            return None
        return (
            "its blocks are compiled, and were rehearsed eager, which by forecast adds "
            f"{format_gib(self.eager_bytes)}: that is taken off, and only a run shows what the compiler keeps"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, with a version."""
        ranks = [{**asdict(rank), "ratio": rank.ratio} for rank in self.ranks]
        whole = {"hardware": self.hardware, "capacity_bytes": self.capacity_bytes, "fits": self.fits}
        said = {} if self.eager is None else {"eager_bytes": self.eager_bytes, "eager": self.eager}
        return {"version": 1, **whole, **said, **self.execution.to_json(), "ranks": ranks, "seconds": self.seconds}


def _moved(rehearsed: dict[str, int], eager: dict[str, int], planned: dict[str, int]) -> dict[str, int]:
    """Rehearsed parts, each with what the forecasts of two ways differ by."""
    return {part: max(0, size + planned.get(part, 0) - eager.get(part, 0)) for part, size in rehearsed.items()}
