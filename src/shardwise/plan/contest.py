"""Which way is chosen, a strategy with an offload, where each is looked at only as far as it could be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwise.plan.ranking import best_figures, chosen_first, reach, to_overtake
from shardwise.spec.cluster import Gpu
from shardwise.spec.job import Goal
from shardwise.spec.plan import Candidate

_Figures = tuple[float, ...]
#: The best candidate of a way, by its number, whose figures are within some; None where there is none.
Best = Callable[[int, _Figures | None], Candidate | None]


def contest(
    ways: Sequence[int], *, best: Best, goal: Goal, gpu: Gpu, enough: _Figures | None = None
) -> dict[int, Candidate]:
    """The best candidates of those ways that could be chosen; whoever is missing could not.

    The simplest come first: a later one must be better than what they came to by more than the tie. As long as none is,
    the first stays chosen, and whoever was passed over was alike with it at best. Where one is, others may have been
    passed over too early: see `_look_again`.

    Args:
        ways: their numbers, the simplest first.
        best: finds their best candidates.
        goal: what is compared.
        gpu: whose forecasts are compared.
        enough: figures beyond which nothing is of interest.
    """
    found: dict[int, Candidate] = {}
    for way in ways:
        overtakes = to_overtake(list(found.values()), goal=goal, gpu=gpu) if found else None
        _look(found, way, best, _least(overtakes, enough))
    if len(found) > 1:
        _look_again(found, ways, best, goal=goal, gpu=gpu, enough=enough)
    return found


def _look_again(
    found: dict[int, Candidate], ways: Sequence[int], best: Best, *, goal: Goal, gpu: Gpu, enough: _Figures | None
) -> None:
    """Several have been found: the chosen one stays so unless something simpler that was passed over is alike with it.

    All that were passed over behind it are alike with it at best, so that the best of all only matters where there is
    something simpler: then what is alike is what is so with the best.
    """
    chosen = chosen_first(list(found.values()), goal=goal, gpu=gpu)[0]
    simpler = ways[: next(place for place, way in enumerate(ways) if found.get(way) is chosen)]

    def finds_simpler() -> bool:
        within = _least(reach(list(found.values()), goal=goal, gpu=gpu), enough)
        return any(_look(found, way, best, within) for way in simpler if way not in found)

    if finds_simpler():
        for way in ways:
            if way not in found:
                _look(found, way, best, _least(best_figures(list(found.values()), goal=goal, gpu=gpu), enough))
        finds_simpler()


def _look(found: dict[int, Candidate], way: int, best: Best, within: _Figures | None) -> bool:
    candidate = best(way, within)
    if candidate is not None:
        found[way] = candidate
    return candidate is not None


def _least(*figures: _Figures | None) -> _Figures | None:
    return min((one for one in figures if one is not None), default=None)
