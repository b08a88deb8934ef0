"""Which candidate is best for a goal; the simplest of those that forecasts cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.plan.choices import RECOMPUTE_ORDER, STRATEGY_ORDER
from shardwise.spec.cluster import Gpu
from shardwise.spec.job import Goal
from shardwise.spec.plan import Candidate

#: Forecasts this close are taken as equal, and the simpler candidate is preferred: uncalibrated times are promised
#: within 15 %, so a smaller difference says little; measured rates say more.
TIE_SHARE, TIE_SHARE_MEASURED = 0.10, 0.03
#: Candidates listed beside the best of each strategy.
OTHERS_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """A goal.

    Attributes:
        figures: what is least in the best candidate; later ones decide between those alike in the earlier.
        tie: share within which figures are alike.
    """

    figures: tuple[Callable[[Candidate], float], ...]
    tie: float


def _gpu_seconds(candidate: Candidate) -> float:
    """What is paid for: all GPUs of a search cost alike."""
    return candidate.time.step_seconds * candidate.execution.layout.world_size


#: goal -> figures of its ranking.
GOALS: dict[Goal, tuple[Callable[[Candidate], float], ...]] = {
    "fastest": (lambda c: c.time.step_seconds,),
    "cheapest": (_gpu_seconds,),
    "fewest-gpus": (lambda c: float(c.execution.layout.world_size), lambda c: c.time.step_seconds),
}


def _simplicity(candidate: Candidate) -> tuple[int, int]:
    """Smaller is simpler: the strategy first, then what is computed again."""
    execution = candidate.execution
    strategy = execution.layout.strategy
    order = STRATEGY_ORDER.index(strategy) if strategy in STRATEGY_ORDER else len(STRATEGY_ORDER)
    return order, RECOMPUTE_ORDER.index(execution.gradient_checkpointing)


def _best(candidates: list[Candidate], goal: Ranking) -> Candidate:
    """The least by each figure of the goal in turn; of those within the tie, the simplest."""
    left = candidates
    for figure in goal.figures:
        bound = min(figure(c) for c in left) * (1 + goal.tie)
        left = [c for c in left if figure(c) <= bound]
    return min(left, key=lambda c: (_simplicity(c), _standing(c, goal)))


def _standing(candidate: Candidate, goal: Ranking) -> tuple[float, ...]:
    """The goal's figures; of equal ones, the fewest micro-batches and GPUs."""
    execution = candidate.execution
    figures = (figure(candidate) for figure in goal.figures)
    return (*figures, execution.gradient_accumulation_steps, execution.layout.world_size)


def ranked(candidates: list[Candidate], goal: Ranking) -> list[Candidate]:
    """The best first, then the others by the goal's figures."""
    best = _best(candidates, goal)
    others = [c for c in candidates if c is not best]
    return [best, *sorted(others, key=lambda c: (_standing(c, goal), _simplicity(c)))]


def ranking_of(goal: Goal, gpu: Gpu) -> Ranking:
    """How candidates on such GPUs are ranked for a goal."""
    return Ranking(figures=GOALS[goal], tie=TIE_SHARE_MEASURED if gpu.measured else TIE_SHARE)


def arranged(groups: list[tuple[Candidate, ...]], goal: Ranking) -> list[Candidate]:
    """The best of each strategy, best first; then a handful of the rest."""
    firsts: dict[str, list[Candidate]] = {}
    for group in groups:
        for candidate in group[:1]:
            firsts.setdefault(candidate.execution.layout.strategy, []).append(candidate)
    bests = [_best(of_strategy, goal) for of_strategy in firsts.values()]
    if not bests:
        return []
    listed = {id(best) for best in bests}
    rest = [c for group in groups for c in group if id(c) not in listed]
    return [*ranked(bests, goal), *(ranked(rest, goal)[:OTHERS_LISTED] if rest else ())]
