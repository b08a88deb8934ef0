"""The plan of a job: the best of each strategy, the choice, and a reason for everything else."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.plan.changes import helpful, what_if
from shardwise.plan.disk import disk_of
from shardwise.plan.explain import (
    in_8_bits,
    left_frozen,
    left_wide,
    remedies,
    too_short,
    why,
    why_faster,
    why_not,
    why_slower,
    widened,
)
from shardwise.plan.search import (
    Question,
    Search,
    StrategySearch,
    ask,
    best_first,
    best_part,
    chosen,
    search_offloads,
    simplicity_of,
    work_on,
)
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Candidate, Plan, Rejection


def make_plan(
    job: Job,
    *,
    model: ModelShape,
    cluster: Cluster,
    num_rows: int | None = None,
    lengths: Lengths | None = None,
    asks_what_if: bool = False,
) -> Plan:
    """Forecasts the executions that a job leaves open and chooses for its goal. The same job gives
    the same plan.

    `num_rows`: training rows, for the duration of the run; None where they are not known.
    `lengths`: of the prepared data: memory is forecast for the longest sequences, time for the mean
    ones. `candidates` are the chosen one, the best of each other strategy, then of each that does
    not fit what needs least memory; `rejected` has a sentence for each but the first.
    `asks_what_if`: the job is planned with some changes too. Raises UnsupportedError: what cannot
    be forecast or formed at all.
    """
    question = ask(job, model=model, cluster=cluster, num_rows=num_rows, lengths=lengths)
    return answer(question, asks_what_if=asks_what_if)


def answer(question: Question, *, asks_what_if: bool = False) -> Plan:
    """The plan of a question."""
    part, notes = best_part(question)
    searches = search_offloads(replace(question, cluster=part))
    best, first_of_all = chosen(searches), searches[0]
    short = best and too_short(best[0], work_on(question, part, best[1].execution))
    # Compiling would take longer than it saves in so short a run: planned again without.
    if short:
        eager = answer(question.eagerly(short), asks_what_if=asks_what_if)
        if eager.best is not None:
            return eager
    if best is None:
        return _plan(question, first_of_all, [], advice=tuple(remedies(question)))
    search, found = best
    first = search.forecasts.candidate(found.execution)
    bests = [one.best for _, one in _by_simplicity(first_of_all) if one.best is not None]
    fitting = [first_of_all.forecasts.candidate(one.execution) for one in bests]
    fitting = [one for one in fitting if one.execution.layout.strategy != first.execution.layout.strategy]
    reasons = (*_reasons(question, searches, search, first), *notes)
    goal, of_part = question.job.goal, replace(question, cluster=part)
    others = [
        replace(one, reasons=(why_faster(one, first, question=of_part) or why_slower(one, first, goal=goal),))
        for one in best_first(fitting)
    ]
    made = _plan(question, first_of_all, [replace(first, reasons=reasons), *others])
    return replace(made, changes=helpful(of_part, first), what_if=what_if(of_part, first) if asks_what_if else ())


def _plan(question: Question, search: Search, fitting: Sequence[Candidate], *, advice: tuple[str, ...] = ()) -> Plan:
    taken = {one.execution.layout.strategy for one in fitting}
    lacking = [one for one in _lacking(search) if one.execution.layout.strategy not in taken]
    # Strategies of which no layout is considered.
    left_out = [
        Rejection(strategy=name, layout=one.left_out.layout, reason=one.left_out.reason or "")
        for name, one in search.strategies.items()
        if one.left_out is not None and not one.bases and name not in taken
    ]
    unfit = sorted([*(one.rejection for one in lacking), *left_out], key=lambda one: simplicity_of(one.strategy))
    return Plan(
        job=question.asked,
        hardware=question.cluster.to_json(),
        model={**question.model.to_json(), "num_trainable_parameters": question.inventory.trained_elements},
        candidates=(*fitting, *lacking),
        chosen=0 if fitting else None,
        rejected=(*(one.rejection for one in fitting[1:]), *unfit),
        advice=advice,
        disk=disk_of(question, fitting[0].execution) if fitting else None,
    )


def _by_simplicity(search: Search) -> list[tuple[str, StrategySearch]]:
    return sorted(search.strategies.items(), key=lambda one: simplicity_of(one[0]))


def _lacking(search: Search) -> Iterator[Candidate]:
    """Of each strategy that does not fit the execution that needs least memory."""
    known: dict[str, bool] = {}
    for _, strategy in _by_simplicity(search):
        least = None if strategy.best else search.least_of(search.extremes(strategy.bases))
        if least is not None:
            forecast, lack = search.forecasts.of(least), search.lack_on_host(least)
            reason = lack[1] if lack else why_not(forecast.work, forecast.memory, known=known)
            yield replace(search.forecasts.candidate(least), fits=False, reasons=(reason,))


def _reasons(question: Question, searches: Sequence[Search], search: Search, first: Candidate) -> tuple[str, ...]:
    """The reasons of what was chosen, and what was not asked about."""
    # Weights on the host are not advised where they are not needed: what is needed is chosen.
    on_host = first.execution.parameters_on_host
    every = [one for each in searches for one in each.fastest if on_host or not one.execution.parameters_on_host]
    fastest = min(every, key=lambda one: one.seconds)
    whose = next(each for each in searches if fastest in each.fastest)
    without = chosen(searches[:1])
    reasons = why(
        search,
        first,
        best=first if fastest.execution == first.execution else whose.forecasts.candidate(fastest.execution),
        without=None if without is None else searches[0].forecasts.candidate(without[1].execution),
    )
    model, built = question.model, None
    if model.built is not None:
        read_off = "its shape was read off the model that transformers builds"
        built = f"the catalogue has no row for this {model.family}: {read_off}"
    if model.counted:
        built = f"{built}; {_of_which_code(model)}"
    weights = (left_frozen(model), widened(question.job, model), left_wide(question.job, model))
    return (*reasons, *filter(None, (*weights, in_8_bits(question.job, model, first.execution), built)))


def _of_which_code(model: ModelShape) -> str:
    """What is known of a model's blocks, and in which code."""
    codes = {code for profile in model.profiles for code in profile.code.split(", ")}
    if not codes:
        return "what its blocks keep is reckoned as of other families"
    kernels = sorted(codes - {"torch"})
    if not kernels:
        return "what its blocks keep was measured in PyTorch's own code, as where no package with kernels is installed"
    return f"what its blocks keep was measured with the kernels of {' and '.join(kernels)}, which are installed here"
