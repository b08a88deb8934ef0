"""Which execution is best for a goal; the simplest of those that forecasts cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from shardwise.plan.search.executions import RECOMPUTE_ORDER
from shardwise.plan.search.layouts import SCHEDULE_ORDER
from shardwise.spec.cluster import Cluster, Gpu
from shardwise.spec.job.keys import Goal
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate

#: Forecasts of time this close are taken as equal, and the simpler execution is preferred. Rates
#: that were measured say more than those of data sheets.
TIE_SHARE, TIE_SHARE_MEASURED = 0.10, 0.03

#: Parts of a strategy's name, from the simplest to the most intricate; a product of two is less
#: simple than either. FSDP stands before ZeRO-2 because it holds less.
_SIMPLICITY = {
    **{way: rank for rank, way in enumerate(("single", "ddp", "fsdp", "zero2", "zero1", "hsdp"))},
    **{way: rank for rank, way in enumerate(("tp", "mp", "pp", "ep", "cp"), 10)},
}
_SIMPLICITY_OF_PRODUCT = 3
#: Optimizer states on the host are simpler than two of tensor, pipeline and context parallelism.
_SIMPLICITY_OF_OFFLOAD = {"none": 0, "optimizer": 20, "parameters": 34, "all": 34}
#: With weights on the host DDP stands behind FSDP, whose ranks share one copy of them there.
_COPIES_ON_HOST = 2

#: What is chosen only where nothing else comes near takes so many times its seconds when it is
#: compared: beyond the tie it must save a quarter. Weights on the host take most of its memory, and
#: no GPU has measured pipelines, or what exchanges activations over PCI Express.
DOUBT = 1.2
#: Seconds are divided by the chance beside a screen, at least by this: not every card drives one.
_LEAST_CHANCE = 0.5
_UNMEASURED, _UNMEASURED_OVER_PCIE = {"pp", "mp"}, {"tp", "cp", "ep"}

#: What the figure of a goal is called when two are compared, and what behind "3 times" is worse.
BETTER: dict[Goal, tuple[str, str, str]] = {
    "fastest": ("faster", "slower", "as slow"),
    "cheapest": ("cheaper", "dearer", "as dear"),
    "fewest-gpus": ("faster", "slower", "as slow"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An execution that fits, its step and chance beside a screen; `tighter`: faster, with less."""

    execution: Execution
    seconds: float
    chance: float = 1.0
    tighter: Found | None = None

    @property
    def likely_seconds(self) -> float:
        """Seconds over the chance."""
        return self.seconds / max(self.chance, _LEAST_CHANCE)


def figure_of(goal: Goal, found: Found) -> float:
    """What is least in the best execution on one kind of GPU: seconds, or GPU seconds."""
    return found.seconds * found.execution.layout.world_size if goal == "cheapest" else found.seconds


def unmeasured(execution: Execution, cluster: Cluster) -> bool:
    """Whether a layout is of a kind that was never measured on GPUs."""
    if cluster.gpu.kind == "cpu":
        return False
    over_pcie = cluster.node.link.name.startswith("pcie")
    ways = {*execution.layout.strategy.split(" x ")}
    return bool(ways & _UNMEASURED or (over_pcie and ways & _UNMEASURED_OVER_PCIE))


def doubt_of(found: Found, cluster: Cluster) -> float:
    """How many times its seconds an execution is taken to need, where executions are compared."""
    doubted = found.execution.parameters_on_host or unmeasured(found.execution, cluster)
    return (DOUBT if doubted else 1.0) * found.likely_seconds / found.seconds


def least_of(some: Iterable[Found], *, goal: Goal, cluster: Cluster) -> float:
    """The least figure, doubts counted; infinite where there is none."""
    return min((figure_of(goal, one) * doubt_of(one, cluster) for one in some), default=inf)


def simplicity(execution: Execution) -> tuple[int, ...]:
    """Smaller is simpler: strategy and offload, then recompute, then schedule."""
    layout = execution.layout
    copies = _COPIES_ON_HOST if layout.strategy == "ddp" and execution.parameters_on_host else 0
    return (
        simplicity_of(layout.strategy) + _SIMPLICITY_OF_OFFLOAD[execution.offload] + copies,
        RECOMPUTE_ORDER.index(execution.gradient_checkpointing),
        SCHEDULE_ORDER.index(layout.schedule),
    )


def simplicity_of(strategy: str) -> int:
    """Smaller is simpler."""
    ways = strategy.split(" x ")
    return sum(_SIMPLICITY[way] for way in ways) + _SIMPLICITY_OF_PRODUCT * (len(ways) - 1)


def tie_of(gpu: Gpu) -> float:
    """The share within which forecasts of time on a GPU are alike."""
    return TIE_SHARE_MEASURED if gpu.measured else TIE_SHARE


def chosen_of(some: Iterable[Found], *, goal: Goal, cluster: Cluster) -> Found:
    """The simplest of those whose figure is alike with the least, doubts counted."""
    found = list(some)
    most = least_of(found, goal=goal, cluster=cluster) * (1 + tie_of(cluster.gpu))
    alike = [one for one in found if figure_of(goal, one) * doubt_of(one, cluster) <= most]
    return min(alike, key=lambda one: (simplicity(one.execution)[0], figure_of(goal, one)))


def best_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates on the same GPUs, the fastest first; of equally fast ones the simpler first."""
    return sorted(candidates, key=lambda c: (c.time.step_seconds, simplicity(c.execution)))


def ratio(candidate: Candidate, other: Candidate, *, goal: Goal) -> float:
    """How many times as much a candidate takes as another, in the goal's figure."""
    one, two = (figure_of(goal, Found(execution=c.execution, seconds=c.time.step_seconds)) for c in (candidate, other))
    return one / two
