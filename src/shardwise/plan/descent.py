"""Best first: sizes of very many groups of executions in the order of what they take at least, until nothing better
than the best one found can follow. What was left because it was of no interest is still there when more is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from shardwise.plan.frontier import Family
from shardwise.plan.groups import Group

_Figures = tuple[float, ...]
#: What waits in the heap: a size that brings the next of its group along, one that was put off, or a family.
_NEXT, _PUT_OFF, _FAMILY = range(3)


class Descent:
    """The order in which one search looks at sizes, and how far.

    Args:
        least: figures that a size of a group, and those behind it in the order of its climb, do not stay below.
        admits: whether any size of a group may be of interest at all; asked when it is its turn.
        opened: the groups of a family.
        prune: stop where nothing better can follow.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        least: Callable[[Group, int], _Figures],
        admits: Callable[[Group], bool],
        opened: Callable[[Family], Iterable[Group]],
        prune: bool,
    ) -> None:
        self._groups: list[Group] = []
        self._families: list[Family] = []
        self._least = least
        self._admits = admits
        self._opened = opened
        self._prune = prune
        self._heap: list[tuple[_Figures, int, int, int]] = []
        self._found: _Figures | None = None
        #: Figures beyond which nothing is of interest any more.
        self.limit: _Figures | None = None
        self._add(groups)

    def resume(self, families: Iterable[Family], *, enough: _Figures | None) -> None:
        """Takes in families that are of interest now, and goes on as far as certain figures."""
        for family in families:
            heapq.heappush(self._heap, (family.least, _FAMILY, len(self._families), 0))
            self._families.append(family)
        self.limit = min((one for one in (enough, self._found) if one is not None), default=None)

    def __iter__(self) -> Iterator[tuple[Group, int, int]]:
        """Groups, each with a place in the order of its climb and its own number."""
        while self._heap and not self.is_beyond(self._heap[0][0]):
            _, kind, number, place = heapq.heappop(self._heap)
            if kind == _FAMILY:
                self._add(self._opened(self._families[number]))
                continue
            group = self._groups[number]
            if kind == _NEXT and place == 0 and not self._admits(group):
                continue
            if kind == _NEXT and place + 1 < len(group.ladder):
                self._push(number, place + 1)
            yield group, place, number

    def put_off(self, figures: _Figures, *, number: int, place: int) -> None:
        """A size surely has such figures, which are of no interest yet."""
        heapq.heappush(self._heap, (figures, _PUT_OFF, number, place))

    def is_beyond(self, figures: _Figures) -> bool:
        """Whether something with such figures is of no interest."""
        return self._prune and self.limit is not None and figures > self.limit

    def reached(self, figures: _Figures) -> None:
        """Something with such figures was found."""
        self._found = figures if self._found is None else min(self._found, figures)
        self.limit = self._found if self.limit is None else min(self.limit, self._found)

    def _add(self, groups: Iterable[Group]) -> None:
        first = len(self._groups)
        self._groups += groups
        for number in range(first, len(self._groups)):
            self._push(number, 0)

    def _push(self, number: int, place: int) -> None:
        heapq.heappush(self._heap, (self._least(self._groups[number], place), _NEXT, number, place))
