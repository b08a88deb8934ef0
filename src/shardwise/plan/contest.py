"""Which strategy is chosen, where each is looked at only as far as it could be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardwise.plan.ranking import best_figures, chosen_first, reach, simplicity_of, to_overtake
from shardwise.spec.cluster import Gpu
from shardwise.spec.job import Goal
from shardwise.spec.plan import Candidate

_Figures = tuple[float, ...]
#: The best candidate of a strategy whose figures are within some; None where there is none.
Best = Callable[[str, _Figures | None], Candidate | None]


def contest(
    names: Iterable[str], *, best: Best, goal: Goal, gpu: Gpu, enough: _Figures | None = None
) -> dict[str, Candidate]:
    """The best candidates of those strategies that could be chosen; whoever is missing could not.

    The simplest come first: a later one must be better than what they came to by more than the tie. As long as none is,
    the first stays chosen, and whoever was passed over was alike with it at best. Where one is, others may have been
    passed over too early: see `_look_again`.

    Args:
        names: of the strategies.
        best: finds their best candidates.
        goal: what is compared.
        gpu: whose forecasts are compared.
        enough: figures beyond which nothing is of interest.
    """
    found: dict[str, Candidate] = {}
    ordered = sorted(names, key=simplicity_of)
    for name in ordered:
        overtakes = to_overtake(list(found.values()), goal=goal, gpu=gpu) if found else None
        _look(found, name, best, _least(overtakes, enough))
    if len(found) > 1:
        _look_again(found, ordered, best, goal=goal, gpu=gpu, enough=enough)
    return found


def _look_again(
    found: dict[str, Candidate], ordered: list[str], best: Best, *, goal: Goal, gpu: Gpu, enough: _Figures | None
) -> None:
    """Several have been found: the chosen one stays so unless something simpler that was passed over is alike with it.

    All that were passed over behind it are alike with it at best, so that the best of all only matters where there is
    something simpler: then what is alike is what is so with the best.
    """
    chosen = chosen_first(list(found.values()), goal=goal, gpu=gpu)[0].execution.layout.strategy
    simpler = ordered[: ordered.index(chosen)]

    def finds_simpler() -> bool:
        within = _least(reach(list(found.values()), goal=goal, gpu=gpu), enough)
        return any(_look(found, name, best, within) for name in simpler if name not in found)

    if finds_simpler():
        for name in ordered:
            if name not in found:
                _look(found, name, best, _least(best_figures(list(found.values()), goal=goal, gpu=gpu), enough))
        finds_simpler()


def _look(found: dict[str, Candidate], name: str, best: Best, within: _Figures | None) -> bool:
    candidate = best(name, within)
    if candidate is not None:
        found[name] = candidate
    return candidate is not None


def _least(*figures: _Figures | None) -> _Figures | None:
    return min((one for one in figures if one is not None), default=None)
