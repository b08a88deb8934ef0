"""The search: every legal execution of a job on a cluster, forecast, ranked for the goal, with a reason for each
strategy left out. Deterministic: the same job gives the same plan."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from shardwise.plan.against import why_faster, why_slower
from shardwise.plan.bounds import Bounds
from shardwise.plan.candidates import hardware_json, model_json
from shardwise.plan.choices import offloads
from shardwise.plan.collector import circles_unsought
from shardwise.plan.experts import left_wide
from shardwise.plan.explain import why
from shardwise.plan.exploration import Exploration, Found, contest_of, explore, explore_whole
from shardwise.plan.explorer import Explorer
from shardwise.plan.fewer import on_fewer
from shardwise.plan.fewest import fewest
from shardwise.plan.fitting import something_fits
from shardwise.plan.host import host_has_room
from shardwise.plan.offloading import better_offloaded, held_by_more
from shardwise.plan.question import Question, ask
from shardwise.plan.ranking import best_first, chosen_first
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
        The best candidate of each strategy with the least offload that anything fits with, or with more where that is
        better and could be chosen; the chosen one before all. Then for each strategy that does not fit its least
        hungry execution. `rejected` has a sentence for each strategy that was not chosen.

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
    few = fewest(question, prune=prune, hopeless=hopeless) if question.job.goal == "fewest-gpus" else None
    on, notes = few or (None, ())
    first, others = _with_as_little_offload(question, prune=prune, hopeless=hopeless, on=on)
    chosen = _chosen(question, [one for exploration in (first, *others) for one in exploration.known])
    fewer = on_fewer(question, chosen.best if chosen else None, bounds=first.explorer.bounds, hopeless=hopeless)
    found = _rows(question, first, others, chosen)
    fitting = _best_first(question, found, chosen)
    if chosen is not None:
        reasons = (*_why(question, chosen, first, others), *filter(None, [fewer, *notes]))
        fitting = [replace(fitting[0], reasons=reasons), *_compared(fitting, first.explorer)]
    return Plan(
        job=question.job.to_json(),
        hardware=hardware_json(question.cluster),
        model=model_json(question),
        candidates=(*fitting, *(one.least for one in found if one.least is not None)),
        chosen=0 if fitting else None,
        rejected=(*_not_taken(fitting), *(one.rejection for one in found if one.rejection is not None)),
        advice=()
        if fitting
        else tuple(filter(None, [left_wide(question.job, question.model), fewer, *remedies(question)])),
    )


def _with_as_little_offload(
    question: Question, *, prune: bool, hopeless: Container[Offload], on: Cluster | None
) -> tuple[Exploration, list[Exploration]]:
    """The first offload that anything fits with, or the first of all; and those with more that could be chosen."""
    tried: list[Exploration] = []
    turn = offloads(question.job, question.cluster)
    for number, offload in enumerate(turn):
        asked, lost = question.with_offload(offload), offload in hopeless
        if tried and not (not lost and _may_fit(asked, prune=prune)):
            continue
        more = turn[number + 1 :]
        on_parts = more if asked.job.goal == "cheapest" else ()
        exploration = explore(Explorer(asked, prune=prune, timed=not lost, compared=on_parts), on=on)
        # Of an offload that nothing fits with, only the first is told about.
        if tried and not exploration.may_fit():
            continue
        tried.append(exploration)
        if not lost:
            exploration.look()
        if exploration.known:
            return exploration, better_offloaded(exploration, more)
    return tried[0], []


def _may_fit(asked: Question, *, prune: bool) -> bool:
    """Whether anything may fit with an offload that was not asked for."""
    if prune and asked.job.goal == "fastest":
        return something_fits(asked)
    return not prune or (Explorer(asked, timed=False).has_room(asked.cluster) and host_has_room(asked))


def _chosen(question: Question, known: Sequence[Found]) -> Found | None:
    """Of what fits, what is chosen."""
    bests = [one.best for one in known if one.best is not None]
    if not bests:
        return None
    best = chosen_first(bests, goal=question.job.goal, gpu=question.cluster.gpu)[0]
    return next(one for one in known if one.best is best)


def _rows(question: Question, first: Exploration, others: Sequence[Exploration], chosen: Found | None) -> list[Found]:
    """What came out for every strategy, the simplest first: with the least offload, or with more that is better."""
    rows = [held_by_more(one, others) for one in first.found()]
    known = [one for exploration in others for one in exploration.known]
    return [chosen if chosen and chosen.strategy == row.strategy else _better_row(question, row, known) for row in rows]


def _better_row(question: Question, row: Found, known: Sequence[Found]) -> Found:
    return _chosen(question, [row, *(one for one in known if one.strategy == row.strategy)]) or row


def _best_first(question: Question, found: Iterable[Found], chosen: Found | None) -> list[Candidate]:
    """The chosen candidate, then the others, the best first."""
    best = None if chosen is None else chosen.best
    others = [one.best for one in found if one.best is not None and one.best is not best]
    ordered = best_first(others, goal=question.job.goal, gpu=question.cluster.gpu)
    return ordered if best is None else [best, *ordered]


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


def _why(question: Question, chosen: Found, first: Exploration, others: Sequence[Exploration]) -> tuple[str, ...]:
    """The reasons of what was chosen, and what was not asked about."""
    without = _chosen(question, first.known)
    if chosen.best is None or chosen.forecast is None or without is None or without.best is None:
        return ()
    known = [one.best for exploration in (first, *others) for one in exploration.known]
    runners_up = [one for one in known if one is not None and one is not chosen.best]
    runners_up = best_first(runners_up, goal=question.job.goal, gpu=question.cluster.gpu)
    reasons = why(chosen.explorer, chosen.forecast, chosen.best, runners_up=runners_up, without=without.best)
    notes = (
        left_wide(question.job, question.model),
        numbers_passed_over(question.job, question.cluster),
        _read_off(question.model),
    )
    return (*reasons, *filter(None, notes))


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
