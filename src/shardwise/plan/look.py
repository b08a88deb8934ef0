"""The best of some executions: asked how good they are, it looks as far as that is of interest, and asked again with
more interest, it goes on from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwise.plan.candidates import Forecast
from shardwise.plan.climbs import Rung
from shardwise.plan.descent import Descent
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Spread
from shardwise.plan.groups import Group
from shardwise.plan.outlook import Number
from shardwise.plan.ranking import simplicity

_Figures = tuple[float, ...]


class Look:
    """A look at executions of one question.

    Sizes come in the order of what they take at least, out of all groups; when even that is more than the best one
    found takes, nothing better can follow.

    Args:
        explorer: of the question.
        groups: where to look.
        spreads: where to look too, for layouts of one strategy.
        strategy: its name.
    """

    def __init__(
        self, explorer: Explorer, groups: Iterable[Group], *, spreads: Sequence[Spread] = (), strategy: str = ""
    ) -> None:
        opener = explorer.opener
        self._explorer = explorer
        self._opener = opener
        self._strategy = strategy
        self._spreads = spreads
        self._taken: set[Number] = set()
        self._descent = Descent(
            groups,
            least=explorer.least_of,
            admits=explorer.may_fit,
            opened=lambda family: opener.opened(family, strategy),
            prune=explorer.prunes,
        )
        self._best: tuple[Group, Rung] | None = None
        self._key: tuple[object, ...] = ()
        self._figures: _Figures = ()
        self._forecast: Forecast | None = None

    def best(self, *, enough: _Figures | None = None) -> Forecast | None:
        """The execution that fits and is the best for the goal; None where there is none within `enough`.

        Args:
            enough: figures beyond which nothing is of interest.
        """
        taken = self._opener.of_interest(self._spreads, strategy=self._strategy, enough=enough, but=self._taken)
        self._taken.update(taken)
        self._descent.resume(taken.values(), enough=enough)
        for group, place, number in self._descent:
            index = self._explorer.climb(group).order[place]
            self._look_at(group, index, number, place)
        if self._best is None or (enough is not None and self._figures > enough):
            return None
        if self._forecast is None:
            self._forecast = self._explorer.forecast_of(*self._best)
        return self._forecast

    def _look_at(self, group: Group, index: int, number: int, place: int) -> None:
        """What is quick to say comes before the actions of a pipeline are laid out, which is not."""
        explorer, descent, rung = self._explorer, self._descent, group.ladder[index]
        figures = explorer.least_sending(group, rung)
        if figures is not None and descent.is_beyond(figures):
            descent.put_off(figures, number=number, place=place)
            return
        if explorer.rules_out(group, rung):
            return
        figures = explorer.least_through_stages(group, rung)
        if figures is not None:
            if descent.is_beyond(figures):
                descent.put_off(figures, number=number, place=place)
                return
            if not explorer.holds(group, rung):
                return
        figures = explorer.figures_of(group, rung)
        if descent.is_beyond(figures):
            descent.put_off(figures, number=number, place=place)
            return
        key = (figures, simplicity(group.base), index, number)
        if (self._best is None or key < self._key) and explorer.holds(group, rung):
            self._best, self._key, self._figures, self._forecast = (group, rung), key, figures, None
            descent.reached(figures)
