"""The search: every legal execution of a job on a cluster, forecast, ranked for the goal, with a reason for each
strategy left out. Deterministic: the same job gives the same plan."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from shardwise.plan.bounds import Bounds
from shardwise.plan.candidates import hardware_json, model_json
from shardwise.plan.choices import offloads
from shardwise.plan.collector import circles_unsought
from shardwise.plan.explain import why, why_faster, why_slower
from shardwise.plan.exploration import Exploration, Found, contest_of, explore, explore_whole
from shardwise.plan.explorer import Explorer
from shardwise.plan.fitting import something_fits
from shardwise.plan.host import host_has_room
from shardwise.plan.offloading import better_offloaded, held_by_more, offloads_passed_over
from shardwise.plan.question import Question, ask
from shardwise.plan.ranking import chosen_first, simplicity_of
from shardwise.plan.remedies import remedies
from shardwise.plan.shares import numbers_passed_over
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Offload
from shardwise.spec.job import Job
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import Candidate, Lengths, Plan, Rejection


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
    first, others = _with_as_little_offload(question, prune=prune, hopeless=hopeless)
    alone = [held_by_more(one, others) for one in first.found()]
    found = _merged(question, [alone, *(other.known for other in others)])
    fitting = _chosen_first(question, found)
    if fitting:
        chosen = next(one for one in found if one.best is fitting[0])
        without = _chosen_first(question, alone)[0]
        notes = (
            numbers_passed_over(question.job, question.cluster),
            offloads_passed_over(question),
            _read_off(question.model),
        )
        reasons = (*_why(chosen, fitting, without), *filter(None, notes))
        fitting = [replace(fitting[0], reasons=reasons), *_compared(fitting, first.explorer)]
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
) -> tuple[Exploration, list[Exploration]]:
    """The first offload that anything fits with, or the first of all; and those with more that could be chosen."""
    tried: list[Exploration] = []
    turn = offloads(question.job, question.cluster)
    for number, offload in enumerate(turn):
        asked, lost = question.with_offload(offload), offload in hopeless
        if tried and not (not lost and _may_fit(asked, prune=prune)):
            continue
        exploration = explore(Explorer(asked, prune=prune, timed=not lost))
        # Of an offload that nothing fits with, only the first is told about.
        if tried and not exploration.may_fit():
            continue
        tried.append(exploration)
        if not lost:
            exploration.look()
        if exploration.known:
            return exploration, better_offloaded(exploration, turn[number + 1 :])
    return tried[0], []


def _may_fit(asked: Question, *, prune: bool) -> bool:
    """Whether anything may fit with an offload that was not asked for."""
    if prune and asked.job.goal == "fastest":
        return something_fits(asked)
    return not prune or (Explorer(asked, timed=False).has_room(asked.cluster) and host_has_room(asked))


def _merged(question: Question, explored: Iterable[Iterable[Found]]) -> list[Found]:
    """What came out for every strategy, the simplest first: of its best with each offload what would be chosen."""
    by_name: dict[str, list[Found]] = {}
    for one in (one for found in explored for one in found):
        by_name.setdefault(one.strategy, []).append(one)
    return [_one_of(question, by_name[name]) for name in sorted(by_name, key=simplicity_of)]


def _one_of(question: Question, found: list[Found]) -> Found:
    fitting = _chosen_first(question, found)
    return next(one for one in found if one.best is fitting[0]) if fitting else found[0]


def _chosen_first(question: Question, found: Iterable[Found]) -> list[Candidate]:
    bests = [one.best for one in found if one.best is not None]
    return chosen_first(bests, goal=question.job.goal, gpu=question.cluster.gpu) if bests else []


def best_alone(
    question: Question, *, enough: tuple[float, ...] | None = None, bounds: Bounds | None = None
) -> Candidate | None:
    """What the plan of a question chooses on all of its hardware, without the reasons and the others; None: nothing.

    As where very many executions are open, each strategy is looked at only as far as it could be chosen.

    Args:
        question: what is asked, with the offload that is meant.
        enough: figures of the goal beyond which nothing is of interest.
        bounds: those of the same question about other numbers of the same GPU, if it was asked before.
    """
    found = contest_of([explore_whole(Explorer(question, bounds=bounds))], enough=enough)
    return chosen_first(found, goal=question.job.goal, gpu=question.cluster.gpu)[0] if found else None


def _why(chosen: Found, fitting: Sequence[Candidate], without: Candidate) -> tuple[str, ...]:
    """The reasons of what was chosen.

    Args:
        chosen: what came out for its strategy.
        fitting: all that fit, the chosen one first.
        without: what would be chosen with the least offload that anything fits with.
    """
    if chosen.forecast is None:
        return ()
    return why(chosen.explorer, chosen.forecast, fitting[0], runners_up=fitting[1:], without=without)


def _compared(fitting: list[Candidate], explorer: Explorer) -> Iterator[Candidate]:
    """All but the chosen candidate, each with why it was not chosen."""
    goal, gpu, is_large = explorer.question.job.goal, explorer.question.cluster.gpu, explorer.effort.is_large
    for candidate in fitting[1:]:
        better = why_faster(candidate, fitting[0], goal=goal, gpu=gpu)
        slower = why_slower(candidate, fitting[0], goal=goal, gpu=gpu, one_of_many=is_large)
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
