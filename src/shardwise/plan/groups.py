"""Executions that differ in nothing but their micro-batch, and what one of them that does not fit says of others."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.plan.bounds import Rung
from shardwise.plan.paces import Pace
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution


def by_size(rung: Rung) -> int:
    """Sequences of a micro-batch, to sort by."""
    return rung.size


@dataclass(kw_only=True, slots=True)
class Group:
    """Executions that differ in nothing but their micro-batch.

    Attributes:
        ladder: their sizes, the one that may be fastest first.
        too_large: sizes known not to fit, each with how many of them a stage may keep in flight.
        pace: how long their steps take, once that is asked.
    """

    cluster: Cluster
    base: Execution
    ladder: tuple[Rung, ...]
    too_large: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    pace: Pace | None = None
    _most_in_flight: int | None = field(init=False)

    def __post_init__(self) -> None:
        layout = self.base.layout
        most = {"gpipe": None, "sequential": 2, "1f1b": max(2, layout.pp)}
        self._most_in_flight = most.get(layout.schedule, 2 * layout.pp)

    def in_flight(self, rung: Rung) -> int:
        """A number that no two sizes share unless they differ in nothing but their size.

        Without a pipeline all that matters is whether gradients of an earlier micro-batch are there; in one, how many
        are under way, of which no schedule but gpipe has more than twice as many as there are ranks.
        """
        most = self._most_in_flight
        return rung.micros if most is None else min(rung.micros, most)

    def leanest(self) -> list[Rung]:
        """Of the sizes with as many in flight the smallest each; where none of these fits, none of all does."""
        smallest = {self.in_flight(rung): rung for rung in sorted(self.ladder, key=by_size, reverse=True)}
        return sorted(smallest.values(), key=by_size)

    def is_too_large(self, rung: Rung) -> bool:
        """Whether a smaller size with as few in flight does not fit."""
        flying = self.in_flight(rung)
        return any(size <= rung.size and others <= flying for size, others in self.too_large)

    def note_too_large(self, rung: Rung) -> None:
        """A larger micro-batch, or more of them, would need no less."""
        self.too_large.append((rung.size, self.in_flight(rung)))
