"""Executions that differ in nothing but their micro-batch, and what one of them that does not fit says of others."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.plan.climbs import Climb, Rung
from shardwise.plan.paces import Pace
from shardwise.plan.scene import longest_round
from shardwise.plan.traffic import Traffic
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution
from shardwise.spec.layout import Layout

#: What tells how much is in flight: of two, whichever is no smaller in any of the numbers keeps no less.
Flying = tuple[int, int]


def flying(layout: Layout, micros: int) -> Flying:
    """Numbers that no two sizes of a layout share unless they differ in nothing but their size.

    Without a pipeline all that matters is whether gradients of an earlier micro-batch are there; in one, how many
    are under way, of which no schedule but gpipe has more than twice as many as there are ranks. An interleaved one
    goes through its stages in rounds, and keeps more the longer these are.
    """
    most = {"gpipe": micros, "sequential": 2, "1f1b": max(2, layout.pp)}
    rounds = longest_round(micros, layout.pp) if layout.schedule == "interleaved" else 0
    return min(micros, most.get(layout.schedule, 2 * layout.pp)), rounds


def no_less(flying: Flying, than: Flying) -> bool:
    """Whether an execution surely keeps no less in flight than another of its kind."""
    return flying[0] >= than[0] and flying[1] >= than[1]


def by_size(rung: Rung) -> int:
    """Sequences of a micro-batch, to sort by."""
    return rung.size


@dataclass(kw_only=True, slots=True)
class Group:
    """Executions that differ in nothing but their micro-batch.

    Attributes:
        ladder: their sizes, the one that may be fastest first.
        alike: by what number `Bounds` knows their pieces.
        too_large: sizes known not to fit, each with how many of them a stage may keep in flight.
        climb: the sizes in the order of what a step takes at least, once that is asked.
        pace: how long their steps take, once that is asked.
        traffic: what their blocks send, once that is asked.
    """

    cluster: Cluster
    base: Execution
    ladder: tuple[Rung, ...]
    alike: int
    too_large: list[tuple[int, Flying]] = field(default_factory=list[tuple[int, Flying]])
    climb: Climb | None = None
    pace: Pace | None = None
    traffic: Traffic | None = None

    def in_flight(self, rung: Rung) -> Flying:
        """How many micro-batches of a size may be under way, as far as that matters: see `flying`."""
        return flying(self.base.layout, rung.micros)

    def leanest(self) -> list[Rung]:
        """Of the sizes with as many in flight the smallest each; where none of these fits, none of all does."""
        smallest = {self.in_flight(rung): rung for rung in sorted(self.ladder, key=by_size, reverse=True)}
        return sorted(smallest.values(), key=by_size)

    def is_too_large(self, rung: Rung) -> bool:
        """Whether a smaller size with as few in flight does not fit."""
        flying = self.in_flight(rung)
        return any(size <= rung.size and no_less(flying, others) for size, others in self.too_large)

    def note_too_large(self, rung: Rung) -> None:
        """A larger micro-batch, or more of them, would need no less."""
        self.too_large.append((rung.size, self.in_flight(rung)))
