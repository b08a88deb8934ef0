"""Best first: sizes of very many groups of executions in the order of what they take at least, until nothing better
than the best one found can follow."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from shardwise.plan.frontier import Family
from shardwise.plan.groups import Group

_Figures = tuple[float, ...]


class Descent:
    """The order in which one search looks at sizes, and how far.

    Args:
        least: figures that a size of a group, and those behind it on its ladder, do not stay below.
        opened: the groups of a family.
        enough: figures beyond which nothing is of interest.
        prune: stop where nothing better can follow.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        families: Sequence[Family],
        *,
        least: Callable[[Group, int], _Figures],
        opened: Callable[[Family], Iterator[Group]],
        enough: _Figures | None,
        prune: bool,
    ) -> None:
        self._groups: list[Group] = []
        self._families = families
        self._least = least
        self._opened = opened
        self._prune = prune
        self._heap: list[tuple[_Figures, bool, int, int]] = []
        #: Figures beyond which nothing is of interest any more.
        self.limit = enough
        self._add(groups)
        for number, family in enumerate(families):
            heapq.heappush(self._heap, (family.least, True, number, 0))

    def __iter__(self) -> Iterator[tuple[Group, int, int]]:
        """Groups, each with an index on its ladder and its own number."""
        while self._heap:
            least, is_family, number, index = heapq.heappop(self._heap)
            if self.is_beyond(least):
                return
            if is_family:
                self._add(self._opened(self._families[number]))
                continue
            group = self._groups[number]
            if index + 1 < len(group.ladder):
                self._push(number, index + 1)
            yield group, index, number

    def is_beyond(self, figures: _Figures) -> bool:
        """Whether something with such figures is of no interest."""
        return self._prune and self.limit is not None and figures > self.limit

    def reached(self, figures: _Figures) -> None:
        """Something with such figures was found."""
        self.limit = figures if self.limit is None else min(self.limit, figures)

    def _add(self, groups: Iterable[Group]) -> None:
        first = len(self._groups)
        self._groups += groups
        for number in range(first, len(self._groups)):
            self._push(number, 0)

    def _push(self, number: int, index: int) -> None:
        heapq.heappush(self._heap, (self._least(self._groups[number], index), False, number, index))
