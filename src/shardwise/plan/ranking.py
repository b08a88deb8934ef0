"""Which candidate is best for a goal; the simplest of those that forecasts cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwise.plan.choices import RECOMPUTE_ORDER
from shardwise.plan.products import SCHEDULE_ORDER
from shardwise.spec.cluster import Gpu
from shardwise.spec.execution import Execution
from shardwise.spec.job import Goal
from shardwise.spec.plan import Candidate

#: Forecasts this close are taken as equal, and the simpler strategy is preferred: what is chosen is promised to be
#: within 5 % of the best, and uncalibrated times within 15 %, so that less says little; measured rates say more. The
#: search is exact all the same: what is faster than what was chosen is named beside it.
TIE_SHARE, TIE_SHARE_MEASURED = 0.05, 0.03

#: Parts of a strategy's name, from the simplest to the most intricate. FSDP stands before ZeRO-2 because it
#: holds less.
_SIMPLICITY = {
    "single": 0,
    "ddp": 1,
    "fsdp": 2,
    "zero2": 3,
    "zero1": 4,
    "hsdp": 5,
    "tp": 10,
    "mp": 10,
    "pp": 12,
    "cp": 14,
}


def _seconds(seconds: float, _num_gpus: int, _usd: float) -> tuple[float, ...]:
    return (seconds,)


def _paid(seconds: float, num_gpus: int, usd: float) -> tuple[float, ...]:
    return (seconds * num_gpus * usd,)


def _counted(seconds: float, num_gpus: int, _usd: float) -> tuple[float, ...]:
    return (float(num_gpus), seconds)


#: goal -> figures that are least in the best candidate; later ones decide between those equal in the earlier.
_FIGURES: dict[Goal, Callable[[float, int, float], tuple[float, ...]]] = {
    "fastest": _seconds,
    "cheapest": _paid,
    "fewest-gpus": _counted,
}

#: What the last figure of a goal is called when two are compared.
BETTER: dict[Goal, tuple[str, str]] = {
    "fastest": ("faster", "slower"),
    "cheapest": ("cheaper", "dearer"),
    "fewest-gpus": ("faster", "slower"),
}


def figures_of(goal: Goal, *, seconds: float, num_gpus: int, gpu: Gpu) -> tuple[float, ...]:
    """The figures of a goal for a step of so many seconds on so many GPUs; without a price, GPUs cost alike."""
    price = gpu.usd_per_hour
    return _FIGURES[goal](seconds, num_gpus, 1.0 if price is None else sum(price) / 2)


def simplicity(execution: Execution) -> tuple[int, ...]:
    """Smaller is simpler: what lies in the host's memory first, then strategy, what is computed again, and schedule."""
    layout = execution.layout
    return (
        ("none", "optimizer", "parameters", "all").index(execution.offload),
        simplicity_of(layout.strategy),
        RECOMPUTE_ORDER.index(execution.gradient_checkpointing),
        SCHEDULE_ORDER.index(layout.schedule),
    )


def simplicity_of(strategy: str) -> int:
    """Smaller is simpler; no two strategies are alike."""
    return sum(_SIMPLICITY[name] for name in strategy.split(" x "))


def tie_of(gpu: Gpu) -> float:
    """The share within which forecasts on a GPU are alike."""
    return TIE_SHARE_MEASURED if gpu.measured else TIE_SHARE


def chosen_first(candidates: Sequence[Candidate], *, goal: Goal, gpu: Gpu) -> list[Candidate]:
    """The chosen candidate, then the others, the best first.

    Chosen is the simplest among those that are alike with the best in the last figure and equal in the others: whoever
    leaves more to the host's memory is less simple than all who leave less.
    """
    ordered = best_first(candidates, goal=goal, gpu=gpu)
    best = _figures(ordered[0], goal, gpu)
    alike = [c for c in ordered if _alike(_figures(c, goal, gpu), best, tie_of(gpu))]
    chosen = min(alike, key=lambda c: simplicity(c.execution)[:2])
    return [chosen, *(c for c in ordered if c is not chosen)]


def best_first(candidates: Sequence[Candidate], *, goal: Goal, gpu: Gpu) -> list[Candidate]:
    """Candidates in the order of their figures; of those with the same, the simpler ones before the others."""
    return sorted(candidates, key=lambda c: (_figures(c, goal, gpu), simplicity(c.execution)))


def best_figures(candidates: Sequence[Candidate], *, goal: Goal, gpu: Gpu) -> tuple[float, ...]:
    """The least figures of some candidates."""
    return min(_figures(candidate, goal, gpu) for candidate in candidates)


def to_overtake(candidates: Sequence[Candidate], *, goal: Goal, gpu: Gpu) -> tuple[float, ...]:
    """Figures that a strategy less simple than all of these must come below to be chosen before them."""
    figures = _figures(chosen_first(candidates, goal=goal, gpu=gpu)[0], goal, gpu)
    return (*figures[:-1], figures[-1] / (1 + tie_of(gpu)))


def reach(candidates: Sequence[Candidate], *, goal: Goal, gpu: Gpu) -> tuple[float, ...]:
    """Figures up to which a strategy that is simpler than all of these would be chosen before them."""
    figures = best_figures(candidates, goal=goal, gpu=gpu)
    return (*figures[:-1], figures[-1] * (1 + tie_of(gpu)))


def _alike(figures: tuple[float, ...], best: tuple[float, ...], tie: float) -> bool:
    return figures[:-1] == best[:-1] and figures[-1] <= best[-1] * (1 + tie)


def _figures(candidate: Candidate, goal: Goal, gpu: Gpu) -> tuple[float, ...]:
    world = candidate.execution.layout.world_size
    return figures_of(goal, seconds=candidate.time.step_seconds, num_gpus=world, gpu=gpu)


def ratio(candidate: Candidate, other: Candidate, *, goal: Goal, gpu: Gpu) -> float:
    """How many times as much a candidate takes as another, in the goal's last figure."""
    return _figures(candidate, goal, gpu)[-1] / _figures(other, goal, gpu)[-1]
