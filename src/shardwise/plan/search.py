"""The search: every legal execution of a job on a cluster, forecast, ranked for the goal, with a reason for each one
left out. Deterministic: the same job gives the same plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardwise.errors import UnsupportedError
from shardwise.plan.choices import RECOMPUTE_ORDER, STRATEGY_ORDER, Choice, executions, layouts
from shardwise.plan.explain import untrainable, why, why_not
from shardwise.plan.inventory import Inventory, take_inventory
from shardwise.plan.memory import forecast_memory, holdings_of
from shardwise.plan.timeline import forecast_time
from shardwise.plan.work import Work, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal, Job
from shardwise.spec.layout import Execution
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import Candidate, Cost, MemoryForecast, Plan, Rejection
from shardwise.spec.support import execution_refusals

#: Forecasts this close are taken as equal, and the simpler candidate is preferred: uncalibrated times are promised
#: within 15 %, so a smaller difference says little; measured rates say more.
TIE_SHARE, TIE_SHARE_MEASURED = 0.10, 0.03
#: Candidates listed beside the best of each strategy.
OTHERS_LISTED = 5

_SHORTEST_LENGTH = 64
_MOST_GPUS_ADVISED = 4096


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What is asked, with what was derived from it once."""

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    num_rows: int | None

    @property
    def goal(self) -> _Ranking:
        """How its candidates are ranked."""
        tie = TIE_SHARE_MEASURED if self.cluster.gpu.measured else TIE_SHARE
        return _Ranking(figures=_GOALS[self.job.goal], tie=tie)


@dataclass(frozen=True, kw_only=True)
class _Ranking:
    """A goal.

    Attributes:
        figures: what is least in the best candidate; later ones decide between those alike in the earlier.
        tie: share within which figures are alike.
    """

    figures: tuple[Callable[[Candidate], float], ...]
    tie: float


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The best candidates of one layout: those that fit by rank, or the one that needs least."""

    fitting: tuple[Candidate, ...] = ()
    least: Candidate | None = None
    rejection: Rejection | None = None


def make_plan(job: Job, *, model: ModelShape, cluster: Cluster, num_rows: int | None = None) -> Plan:
    """Forecasts every execution the job leaves open and chooses for its goal.

    Args:
        job: what is asked.
        model: its model's shape.
        cluster: the hardware.
        num_rows: training rows, for the duration of the whole run; None where they are not known.

    Returns:
        The best candidate of each strategy first (the chosen one before all), a handful of others, then for each
        strategy that does not fit its least hungry execution. `rejected` has a sentence for each strategy left out.

    Raises:
        UnsupportedError: the job asks for what cannot be forecast or formed at all.
    """
    _check_length(job, model)
    question = _Question(
        job=job,
        model=model,
        cluster=cluster,
        inventory=take_inventory(job, model),
        num_rows=job.data.num_rows if num_rows is None else num_rows,
    )
    found = [_search(question, choice) for choice in layouts(job, cluster)]
    fitting = _arranged([one.fitting for one in found], question.goal)
    return Plan(
        job=job.to_json(),
        hardware=hardware_json(cluster),
        model=_model_json(question),
        candidates=(*fitting, *(one.least for one in found if one.least is not None)),
        chosen=0 if fitting else None,
        rejected=_distinct(found),
        advice=() if fitting else tuple(_advice(question)),
    )


def _check_length(job: Job, model: ModelShape) -> None:
    length, most = job.data.max_length, model.max_position_embeddings
    if model.position_parameters and length > most:
        raise UnsupportedError(
            f"data.max_length is {length}, and the model has {most} learned positions; lower it to {most}"
        )
    if model.attention_softcap and job.train.attn_implementation == "sdpa":
        raise UnsupportedError(
            "train.attn_implementation is sdpa, which cannot cap scores as this model does; use eager"
        )


def _search(question: _Question, choice: Choice) -> _Found:
    if choice.reason is not None:
        return _Found(rejection=Rejection(strategy=choice.strategy, layout=choice.layout, reason=choice.reason))
    groups = list(executions(question.job, question.model, choice))
    refusals = execution_refusals(question.job, groups[0][0])
    if refusals:
        reason = untrainable(_work(question, choice, groups[0][0]), refusals)
        return _Found(rejection=Rejection(strategy=choice.strategy, layout=choice.layout, reason=reason))
    tried = list(_forecasts(question, choice, groups))
    fitting = [(work, memory) for work, memory in tried if memory.peak_high_bytes <= memory.capacity_bytes]
    if not fitting:
        return _too_large(question, choice, tried)
    return _Found(fitting=_ranked_fitting(question, fitting, tried))


def _work(question: _Question, choice: Choice, execution: Execution) -> Work:
    return work_of(
        question.job,
        model=question.model,
        cluster=choice.cluster,
        execution=execution,
        inventory=question.inventory,
    )


def _forecasts(
    question: _Question, choice: Choice, groups: Iterable[list[Execution]]
) -> Iterator[tuple[Work, MemoryForecast]]:
    """Memory of each execution; a larger micro-batch than one that does not fit is not tried."""
    held = None
    for group in groups:
        for execution in group:
            work = _work(question, choice, execution)
            held = held or holdings_of(work)
            memory = forecast_memory(work, held=held)
            yield work, memory
            if memory.peak_high_bytes > memory.capacity_bytes:
                break


def _too_large(question: _Question, choice: Choice, tried: list[tuple[Work, MemoryForecast]]) -> _Found:
    work, memory = min(tried, key=lambda one: one[1].peak_high_bytes)
    reason = why_not(work, memory)
    least = replace(_candidate(question, work, memory), fits=False, reasons=(reason,))
    return _Found(least=least, rejection=Rejection(strategy=choice.strategy, layout=choice.layout, reason=reason))


def _ranked_fitting(
    question: _Question, fitting: list[tuple[Work, MemoryForecast]], tried: list[tuple[Work, MemoryForecast]]
) -> tuple[Candidate, ...]:
    candidates = [_candidate(question, work, memory) for work, memory in fitting]
    works = {id(candidate): work for candidate, (work, _) in zip(candidates, fitting, strict=True)}
    shown = _ranked(candidates, question.goal)[: OTHERS_LISTED + 1]
    sizes = [(work.execution, memory) for work, memory in tried]
    return tuple(replace(c, reasons=why(works[id(c)], c, alternatives=sizes)) for c in shown)


def _candidate(question: _Question, work: Work, memory: MemoryForecast) -> Candidate:
    time = forecast_time(work, num_rows=question.num_rows)
    hourly = _usd_per_hour(work)
    usd = None if hourly is None or time.total_seconds is None else hourly * time.total_seconds / 3600
    return Candidate(
        execution=work.execution, fits=True, memory=memory, time=time, cost=Cost(usd=usd, usd_per_hour=hourly)
    )


def _usd_per_hour(work: Work) -> float | None:
    """All GPUs at the middle of the catalogue's range."""
    price = work.cluster.gpu.usd_per_hour
    return None if price is None else sum(price) / 2 * work.execution.layout.world_size


def _gpu_seconds(candidate: Candidate) -> float:
    """What is paid for: all GPUs of a search cost alike."""
    return candidate.time.step_seconds * candidate.execution.layout.world_size


#: goal -> figures of its ranking.
_GOALS: dict[Goal, tuple[Callable[[Candidate], float], ...]] = {
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


def _best(candidates: list[Candidate], goal: _Ranking) -> Candidate:
    """The least by each figure of the goal in turn; of those within the tie, the simplest."""
    left = candidates
    for figure in goal.figures:
        bound = min(figure(c) for c in left) * (1 + goal.tie)
        left = [c for c in left if figure(c) <= bound]
    return min(left, key=lambda c: (_simplicity(c), _standing(c, goal)))


def _standing(candidate: Candidate, goal: _Ranking) -> tuple[float, ...]:
    """The goal's figures; of equal ones, the fewest micro-batches and GPUs."""
    execution = candidate.execution
    figures = (figure(candidate) for figure in goal.figures)
    return (*figures, execution.gradient_accumulation_steps, execution.layout.world_size)


def _ranked(candidates: list[Candidate], goal: _Ranking) -> list[Candidate]:
    best = _best(candidates, goal)
    others = [c for c in candidates if c is not best]
    return [best, *sorted(others, key=lambda c: (_standing(c, goal), _simplicity(c)))]


def _arranged(groups: list[tuple[Candidate, ...]], goal: _Ranking) -> list[Candidate]:
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
    return [*_ranked(bests, goal), *(_ranked(rest, goal)[:OTHERS_LISTED] if rest else ())]


def _distinct(found: Iterable[_Found]) -> tuple[Rejection, ...]:
    """One rejection per strategy that fits nowhere: the last, which is that of the largest part of the cluster."""
    fitting = {candidate.execution.layout.strategy for one in found for candidate in one.fitting}
    rejections = {one.rejection.strategy: one.rejection for one in found if one.rejection is not None}
    return tuple(rejection for name, rejection in rejections.items() if name not in fitting)


def hardware_json(cluster: Cluster) -> dict[str, Any]:
    """The cluster as plan.json has it."""
    return {"name": cluster.name, "num_gpus": cluster.num_gpus, **asdict(cluster)}


def _model_json(question: _Question) -> dict[str, Any]:
    return {**question.model.to_json(), "num_trainable_parameters": question.inventory.trained_elements}


def _advice(question: _Question) -> Iterator[str]:
    """What would make it fit, each tried before it is said."""
    length = _longest_that_fits(question)
    if length is not None:
        yield f"data.max_length {length} would fit"
    if question.job.method == "full":
        lora = question.job.model_copy(update={"method": "lora"})
        if _fits(replace(question, job=lora, inventory=take_inventory(lora, question.model))):
            yield "method: lora would fit"
    gpus = _gpus_that_fit(question)
    if gpus is not None:
        yield f"{gpus.name} would fit"


def _fits(question: _Question) -> bool:
    """Whether any execution of any layout that the trainer accepts fits."""
    for choice in layouts(question.job, question.cluster):
        if choice.reason is not None:
            continue
        groups = [group[:1] for group in executions(question.job, question.model, choice)]
        if execution_refusals(question.job, groups[0][0]):
            continue
        if any(m.peak_high_bytes <= m.capacity_bytes for _, m in _forecasts(question, choice, groups)):
            return True
    return False


def _longest_that_fits(question: _Question) -> int | None:
    """The longest sequence that fits, in steps of the shortest one considered."""
    low, high = 0, question.job.data.max_length // _SHORTEST_LENGTH
    while high - low > 1:
        middle = (low + high) // 2
        data = question.job.data.model_copy(update={"max_length": middle * _SHORTEST_LENGTH})
        fits = _fits(replace(question, job=question.job.model_copy(update={"data": data})))
        low, high = (middle, high) if fits else (low, middle)
    return low * _SHORTEST_LENGTH or None


def _gpus_that_fit(question: _Question) -> Cluster | None:
    """The cluster doubled, inside its nodes up to eight GPUs, until the job fits."""
    cluster = question.cluster
    if cluster.gpu.kind == "cpu" or question.job.layout != "auto":
        return None
    while cluster.num_gpus * 2 <= _MOST_GPUS_ADVISED:
        if cluster.num_nodes == 1 and cluster.node.num_gpus * 2 <= 8:
            cluster = replace(cluster, node=replace(cluster.node, num_gpus=cluster.node.num_gpus * 2))
        else:
            cluster = replace(cluster, num_nodes=cluster.num_nodes * 2, network=cluster.network or cluster.node.link)
        if _fits(replace(question, cluster=cluster)):
            return cluster
    return None
