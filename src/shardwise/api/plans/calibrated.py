"""What measured runs say of a plan: finished ones over their forecasts, and the chance to fit."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import floor

from shardwise.catalog.calibration import (
    OTHERS,
    OWN,
    Calibration,
    MeasuredRun,
    RunKind,
    calibration,
    errors_of,
    note_run,
    noted_runs,
)
from shardwise.catalog.devices import cpu_model, usable_cores
from shardwise.catalog.probe import screen_bytes
from shardwise.errors import InputError
from shardwise.report.contents import Report
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan.beside import Chance
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import Candidate, Plan, RankMemory, Sentence, kind_of
from shardwise.spec.run import RunDirectory
from shardwise.units import format_gib


def note(run: RunDirectory, report: Report) -> None:
    """Notes a finished run; nothing where its plan or its measurements are not known."""
    worst, step = report.memory.worst, report.comparison("step time")
    forecast = worst.ratios.get("peak_seen", worst.ratios.get("peak")) if worst else None
    memory = 1 / forecast if forecast else None
    seconds = step.measured / step.forecast if step and step.measured and step.forecast else None
    if memory is None and seconds is None:
        return
    with suppress(InputError, OSError, KeyError, TypeError):
        plan = read_plan(run.plan)
        if plan.best is not None:
            note_run(MeasuredRun(kind=_kind(plan, plan.best), memory=memory, seconds=seconds))


def with_runs(made: Plan, *, multiply: bool) -> Plan:
    """The plan with a sentence on what runs like the chosen one measured here. `multiply`: each
    candidate that fits by what runs like it measured; what then no longer fits gives way to the
    next, and the order stays otherwise."""
    runs, wrong = noted_runs()
    if made.best is None or not (runs or wrong or multiply):
        return made
    said = () if wrong is None else (wrong,)
    found = [calibration(runs, _kind(made, one)) if one.fits else None for one in made.candidates]
    if multiply:
        pairs = zip(made.candidates, found, strict=True)
        candidates = [one if known is None else _multiplied(one, known) for one, known in pairs]
        chosen = next((one for one in candidates if one.fits), None)
        if all(known is None for known in found):
            said = (*said, "no run like this has been noted here: nothing is multiplied")
        return _saying(ranked(made, candidates, chosen=chosen, key="calibrated"), said)
    known = found[made.chosen or 0]
    return _saying(made, said if known is None else (*said, f"{_measured(known)}; --calibrated multiplies by that"))


def _kind(plan: Plan, one: Candidate) -> RunKind:
    gpu = Cluster.from_json(plan.hardware).gpu
    return RunKind(
        device=f"{cpu_model()}, {usable_cores()} cores" if gpu.kind == "cpu" else gpu.name,
        probed=gpu.measured,
        strategy=one.execution.layout.strategy,
        method=str(plan.job["method"]),
        precision=one.execution.precision,
        compile=one.execution.compile,
        parameters=int(plan.model["num_parameters"]),
    )


def _measured(known: Calibration) -> str:
    """`3 runs like this measured 4 % more memory and 12 % more time than forecast`."""
    ratios = {"memory": known.memory, "time": known.seconds}
    parts = [
        f"{100 * abs(ratio - 1):.0f} % {'more' if ratio > 0.995 else 'less'} {what}"
        for what, ratio in ratios.items()
        if ratio is not None
    ]
    runs = "1 run" if known.runs == 1 else f"{known.runs} runs"
    return f"{runs} like this measured {' and '.join(parts)} than forecast"


def _multiplied(one: Candidate, known: Calibration) -> Candidate:
    """Memory inside the allocator, and time, times what was measured over them."""
    more, longer, time = known.memory or 1.0, known.seconds or 1.0, one.time
    outside = one.worst_rank.parts.get("context", 0)
    ranks = tuple(_rank(rank, more) for rank in one.memory.ranks)
    sizes = ("peak_reserved_bytes", "peak_low_bytes", "peak_high_bytes")
    grown = {name: outside + round(more * (getattr(one.memory, name) - outside)) for name in sizes}
    memory = replace(one.memory, peak_bytes=max(rank.peak_bytes for rank in ranks), ranks=ranks, **grown)
    slower = replace(
        time,
        step_seconds=time.step_seconds * longer,
        tokens_per_second=time.tokens_per_second / longer,
        mfu=min(1.0, time.mfu / longer),
        compute_utilization=min(1.0, time.compute_utilization / longer),
        total_seconds=None if time.total_seconds is None else time.total_seconds * longer,
    )
    cost = replace(one.cost, usd=None if one.cost.usd is None else one.cost.usd * longer)
    high, room = memory.peak_high_bytes, memory.capacity_bytes
    fits = more <= 1 or high <= room
    said = (
        f"calibrated: {_measured(known)}; memory and time are multiplied by that, but for figures in the reasons above"
    )
    reasons = (*one.reasons, said)
    if not fits:
        needs = f"calibrated, it needs up to {format_gib(high)} of {format_gib(room)}: {_measured(known)}"
        reasons = (Sentence(needs, "calibrated"),)
    return replace(one, memory=memory, time=slower, cost=cost, fits=fits, reasons=reasons)


def _rank(rank: RankMemory, more: float) -> RankMemory:
    parts = {part: size if part == "context" else round(more * size) for part, size in rank.parts.items()}
    return RankMemory(ranks=rank.ranks, peak_bytes=sum(parts.values()), parts=parts)


def _saying(made: Plan, said: tuple[str, ...]) -> Plan:
    if made.chosen is None:
        return replace(made, advice=(*said, *made.advice))
    candidates = list(made.candidates)
    candidates[made.chosen] = replace(candidates[made.chosen], reasons=(*candidates[made.chosen].reasons, *said))
    return replace(made, candidates=tuple(candidates))


def ranked(made: Plan, candidates: Sequence[Candidate], *, chosen: Candidate | None, key: str) -> Plan:
    """The chosen first, then what fits; what gave way, by a reason of that key, is told with it."""
    first = [] if chosen is None else [chosen]
    others = sorted((one for one in candidates if one is not chosen), key=lambda one: not one.fits)
    why = ((one, one.reasons[0]) for one in others if not one.fits)
    gave_way = [one.rejection for one, reason in why if kind_of(reason) == key]
    sentences = tuple(f"{one.strategy}: {one.reason}" for one in gave_way)
    decided = {(one.strategy, one.layout) for one in (*gave_way, *(one.rejection for one in first))}
    return replace(
        made,
        candidates=(*(replace(one, reasons=(*one.reasons, *sentences)) for one in first), *others),
        chosen=None if chosen is None else 0,
        rejected=(*gave_way, *(one for one in made.rejected if (one.strategy, one.layout) not in decided)),
        advice=() if chosen is not None else (*sentences, *made.advice),
    )


def with_chance(made: Plan) -> Plan:
    """The plan with its chance; not where nothing fits, nor on CPU processes."""
    best = made.best
    if best is None or made.hardware["node"]["gpu"]["kind"] == "cpu":
        return made
    memory, theirs = best.memory, made.on_stack
    # What the allocator holds is what has to fit, and grows with what it has given out.
    held = memory.peak_reserved_bytes
    if theirs is not None:
        held = theirs.peak_bytes * (memory.peak_reserved_bytes / memory.peak_bytes)
    errors = errors_of(OWN if theirs is None else OTHERS, best.execution.layout)
    # Cards that are rented drive no screen.
    screen = 0 if made.offers else screen_bytes(made.job["hardware"], made.hardware["node"]["gpu"]["name"])
    share = errors.chance_below((memory.capacity_bytes - screen) / held)
    return replace(
        made,
        chance=Chance(
            in_100=min(99, max(1, floor(100 * share))),
            group=errors.name,
            rows=errors.rows,
            sources=errors.sources,
            narrowed_by=_narrowed_by(made),
            screen_bytes=screen,
        ),
    )


def _narrowed_by(made: Plan) -> str:
    """Another trainer's step can only be run; this one's can be counted and measured."""
    if made.on_stack is not None:
        return f"one step of {made.on_stack.target} on such a GPU (torch.cuda.max_memory_reserved)"
    if made.data is None:
        return "shardwise data, which counts how long the rows are"
    return "shardwise plan --rehearse, which counts every tensor"
