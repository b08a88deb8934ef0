"""The search: every legal execution of a job on a cluster, forecast, ranked for the goal, with a reason for each
strategy left out. Deterministic: the same job gives the same plan."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from shardwise.plan.bounds import Bounds
from shardwise.plan.candidates import candidate_of, hardware_json, model_json
from shardwise.plan.choices import offloads
from shardwise.plan.collector import circles_unsought
from shardwise.plan.contest import contest
from shardwise.plan.explain import why, why_faster, why_slower
from shardwise.plan.explorer import Explorer, Forecast
from shardwise.plan.fewest import smallest_that_fits
from shardwise.plan.fitting import something_fits
from shardwise.plan.frontier import Family, Frontier
from shardwise.plan.groups import Group
from shardwise.plan.host import host_has_room
from shardwise.plan.lacks import why_not
from shardwise.plan.look import Look
from shardwise.plan.products import Choice, layouts
from shardwise.plan.question import Question, ask
from shardwise.plan.ranking import chosen_first, simplicity_of
from shardwise.plan.remedies import remedies
from shardwise.plan.shares import formed_parts, numbers_passed_over, parts
from shardwise.spec.cluster import Cluster, Gpu
from shardwise.spec.execution import Offload
from shardwise.spec.job import Job
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import Candidate, Lengths, Plan, Rejection

#: With more executions open than this, the best of a strategy that cannot be chosen is not looked for any more: one of
#: its executions that fits stands for it, and its reason says so.
_OPEN_FOR_ALL = 2000


@dataclass(kw_only=True)
class _Strategy:
    """All layouts of one name.

    Attributes:
        groups: executions on the whole cluster, or on the one part of it that is looked at.
        families: what else there is, on smaller parts.
        left_out: the first layout that is not considered, with its reason.
        look: how far they have been looked at.
    """

    groups: list[Group] = field(default_factory=list[Group])
    families: Sequence[Family] = ()
    left_out: Choice | None = None
    look: Look | None = None


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What came out for one strategy: its best candidate, or the reason why there is none.

    Attributes:
        least: the candidate that needs least memory, where none fits.
    """

    forecast: Forecast | None = None
    best: Candidate | None = None
    least: Candidate | None = None
    rejection: Rejection | None = None


def make_plan(
    job: Job, *, model: ModelShape, cluster: Cluster, num_rows: int | None = None, lengths: Lengths | None = None
) -> Plan:
    """Forecasts every execution the job leaves open and chooses for its goal.

    Args:
        job: what is asked.
        model: its model's shape.
        cluster: the hardware.
        num_rows: training rows, for the duration of the whole run; None where they are not known.
        lengths: of the prepared data: memory is forecast for the longest sequences, time for the mean ones. None
            takes every sequence to be `data.max_length` long.

    Returns:
        The best candidate of each strategy, the chosen one before all, then for each strategy that does not fit its
        least hungry execution. `rejected` has a sentence for each strategy that was not chosen.

    Raises:
        UnsupportedError: the job asks for what cannot be forecast or formed at all.
    """
    return answer(ask(job, model=model, cluster=cluster, num_rows=num_rows, lengths=lengths))


@circles_unsought()
def answer(question: Question, *, prune: bool = True, hopeless: Container[Offload] = ()) -> Plan:
    """The plan of a question; without pruning the same, more slowly.

    Args:
        question: what is asked.
        prune: leave out what a bound rules out.
        hopeless: offloads with which nothing is known to fit on the hardware, or on any part of it.
    """
    explorer, found = _with_as_little_offload(question, prune=prune, hopeless=hopeless)
    goal, gpu = question.job.goal, question.cluster.gpu
    bests = [one.best for one in found if one.best is not None]
    fitting = chosen_first(bests, goal=goal, gpu=gpu) if bests else []
    if fitting:
        forecast = next(one.forecast for one in found if one.best is fitting[0])
        reasons = why(explorer, forecast, fitting[0], runners_up=fitting[1:]) if forecast else ()
        notes = (numbers_passed_over(question.job, question.cluster), _read_off(question.model))
        reasons = (*reasons, *filter(None, notes))
        fitting = [replace(fitting[0], reasons=reasons), *_compared(fitting, explorer)]
    return Plan(
        job=question.job.to_json(),
        hardware=hardware_json(question.cluster),
        model=model_json(question),
        candidates=(*fitting, *(one.least for one in found if one.least is not None)),
        chosen=0 if fitting else None,
        rejected=(*_not_taken(fitting), *(one.rejection for one in found if one.rejection is not None)),
        advice=() if fitting else tuple(remedies(question)),
    )


def _with_as_little_offload(
    question: Question, *, prune: bool, hopeless: Container[Offload]
) -> tuple[Explorer, list[_Found]]:
    """What comes out with the first offload that anything fits with; with the first of all where nothing does."""
    tried: list[tuple[Explorer, list[_Found]]] = []
    for offload in offloads(question.job, question.cluster):
        asked, lost = question.with_offload(offload), offload in hopeless
        if tried and lost:
            continue
        if prune and tried and question.job.goal == "fastest" and not something_fits(asked):
            continue
        explorer = Explorer(asked, prune=prune, timed=not lost)
        if tried and not (explorer.has_room(question.cluster) and (not prune or host_has_room(asked))):
            continue
        strategies = _explore(explorer)
        # Of an offload that nothing fits with, only the first is told about.
        if tried and not explorer.fits(_groups(strategies)):
            continue
        tried.append((explorer, _each(explorer, strategies, nothing_fits=lost)))
        if any(one.best is not None for one in tried[-1][1]):
            return tried[-1]
    return tried[0]


def best_alone(
    question: Question, *, enough: tuple[float, ...] | None = None, bounds: Bounds | None = None
) -> Candidate | None:
    """What the plan of a question chooses on all of its hardware, without the reasons and the others; None: nothing.

    As where very many executions are open, each strategy is looked at only as far as it could be chosen.

    Args:
        question: what is asked.
        enough: figures of the goal beyond which nothing is of interest.
        bounds: those of the same question about other numbers of the same GPU, if it was asked before.
    """
    explorer, strategies = Explorer(question, bounds=bounds), dict[str, _Strategy]()
    for choice in layouts(question.job, question.model, question.cluster):
        _sort_in(explorer, choice, strategies)
    found = list(_of_those_that_could_be_chosen(explorer, strategies, enough=enough).values())
    candidates = [candidate_of(question, one.work, one.memory, one.time) for one in found]
    return chosen_first(candidates, goal=question.job.goal, gpu=_gpu(explorer))[0] if candidates else None


def _explore(explorer: Explorer) -> dict[str, _Strategy]:
    """What every strategy leaves open; for `fewest-gpus` on the smallest part of the cluster that anything fits on."""
    question, strategies = explorer.question, dict[str, _Strategy]()
    among, waits = question.job.layout, question.job.goal == "cheapest" and question.job.stated_layout is None
    for part in [question.cluster] if waits else _looked_at(explorer):
        for choice in layouts(question.job, question.model, part):
            _sort_in(explorer, choice, strategies)
    frontier = _smaller(explorer) if waits else None
    # As many are taken to be open on each part as on the whole.
    num_parts = 1 if frontier is None else 1 + frontier.num_parts
    explorer.effort.is_large = explorer.effort.open * num_parts > _OPEN_FOR_ALL
    if frontier is not None:
        open_names = {*among, "single"} if isinstance(among, list) else frontier.strategies
        for name in frontier.strategies & open_names:
            strategies.setdefault(name, _Strategy()).families = frontier.of(name)
    return strategies


def _looked_at(explorer: Explorer) -> list[Cluster]:
    """Parts of a question's cluster, and the whole of it."""
    question = explorer.question
    if question.job.goal == "fewest-gpus":
        return [smallest_that_fits(explorer)]
    return [part for part in formed_parts(question.job, question.cluster) if _is_worth_a_look(explorer, part)]


def _is_worth_a_look(explorer: Explorer, part: Cluster) -> bool:
    """Within a node there is something to say of parts without room too, and of the whole in any case."""
    return part.num_nodes == 1 or part == explorer.question.cluster or explorer.has_room(part)


def _smaller(explorer: Explorer) -> Frontier:
    """What smaller parts of the cluster have to offer, unopened."""
    question = explorer.question
    smaller = (part for part in parts(question.job, question.cluster) if part != question.cluster)
    return Frontier(question, explorer.bounds, (part for part in smaller if _is_worth_a_look(explorer, part)))


def _groups(strategies: dict[str, _Strategy]) -> Iterable[Group]:
    return (group for strategy in strategies.values() for group in strategy.groups)


def _sort_in(explorer: Explorer, choice: Choice, strategies: dict[str, _Strategy]) -> None:
    strategy = strategies.setdefault(choice.strategy, _Strategy())
    reason = explorer.why_left_out(choice)
    if reason is None:
        strategy.groups += explorer.groups(choice)
    else:
        strategy.left_out = strategy.left_out or replace(choice, reason=reason)


def _each(explorer: Explorer, strategies: dict[str, _Strategy], *, nothing_fits: bool) -> list[_Found]:
    """What came out for every strategy, the simplest first; nothing is looked for that is known not to be there."""
    names = sorted(strategies, key=simplicity_of)
    if nothing_fits:
        return [_of_strategy(explorer, name, strategies[name], None) for name in names]
    if _is_large(explorer):
        found = _of_those_that_could_be_chosen(explorer, strategies)
        return [
            _of_strategy(explorer, name, strategies[name], found.get(name), passed_over=bool(found)) for name in names
        ]
    each = ((name, strategies[name], _best_of(explorer, strategies[name], name)) for name in names)
    return [_of_strategy(explorer, name, strategy, best) for name, strategy, best in each]


def _of_those_that_could_be_chosen(
    explorer: Explorer, strategies: dict[str, _Strategy], *, enough: tuple[float, ...] | None = None
) -> dict[str, Forecast]:
    forecasts: dict[str, Forecast] = {}

    def best(name: str, within: tuple[float, ...] | None) -> Candidate | None:
        found = _best_of(explorer, strategies[name], name, enough=within)
        if found is None:
            return None
        forecasts[name] = found
        return candidate_of(explorer.question, found.work, found.memory, found.time)

    contest(strategies, best=best, goal=explorer.question.job.goal, gpu=_gpu(explorer), enough=enough)
    return forecasts


def _best_of(
    explorer: Explorer, strategy: _Strategy, name: str, *, enough: tuple[float, ...] | None = None
) -> Forecast | None:
    if strategy.look is None:
        strategy.look = Look(explorer, strategy.groups, families=strategy.families, strategy=name)
    return strategy.look.best(enough=enough)


def _is_large(explorer: Explorer) -> bool:
    return explorer.effort.is_large


def _gpu(explorer: Explorer) -> Gpu:
    return explorer.question.cluster.gpu


def _of_strategy(
    explorer: Explorer, name: str, strategy: _Strategy, best: Forecast | None, *, passed_over: bool = False
) -> _Found:
    """What came out for a strategy whose best is known; `passed_over`, where none is, it was not looked for in full."""
    question, groups, left_out = explorer.question, strategy.groups, strategy.left_out
    if best is not None:
        return _Found(forecast=best, best=candidate_of(question, best.work, best.memory, best.time))
    groups = groups or explorer.opener.opened_on_largest(strategy.families, name)
    if not groups:
        if left_out is None:
            return _Found()
        return _Found(rejection=Rejection(strategy=name, layout=left_out.layout, reason=left_out.reason or ""))
    work, memory = explorer.one_that_fits(groups) if passed_over else explorer.least(groups)
    if memory.peak_high_bytes <= memory.capacity_bytes:
        forecast = Forecast(work=work, memory=memory, time=explorer.time(work))
        return _Found(forecast=forecast, best=candidate_of(question, work, memory, forecast.time))
    reason = why_not(work, memory)
    least = replace(candidate_of(question, work, memory, explorer.time(work)), fits=False, reasons=(reason,))
    return _Found(least=least, rejection=Rejection(strategy=name, layout=work.execution.layout, reason=reason))


def _compared(fitting: list[Candidate], explorer: Explorer) -> Iterable[Candidate]:
    """All but the chosen candidate, each with why it was not chosen."""
    goal, gpu = explorer.question.job.goal, _gpu(explorer)
    for candidate in fitting[1:]:
        better = why_faster(candidate, fitting[0], goal=goal, gpu=gpu)
        slower = why_slower(candidate, fitting[0], goal=goal, gpu=gpu, one_of_many=_is_large(explorer))
        yield replace(candidate, reasons=(better or slower,))


def _not_taken(fitting: list[Candidate]) -> Iterable[Rejection]:
    for candidate in fitting[1:]:
        layout = candidate.execution.layout
        yield Rejection(strategy=layout.strategy, layout=layout, reason="; ".join(candidate.reasons))


def _read_off(model: ModelShape) -> str | None:
    """Where the shape comes from, if it is not the catalogue."""
    if model.built is None:
        return None
    return f"the catalogue has no row for {model.family}: its shape was read off the model that transformers builds"
