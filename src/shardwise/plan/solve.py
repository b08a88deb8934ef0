"""`--solve`: the extreme value of a key that fits: by bisection, numbers of GPUs one by one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardwise.errors import UnsupportedError
from shardwise.plan.answer import answer
from shardwise.plan.explain import why_not
from shardwise.plan.search import Search, offloads
from shardwise.plan.unknowns import Unknown
from shardwise.spec.layout.execution import Offload
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.plan.found import Following, Solved, Tried
from shardwise.units import GIB


@dataclass(kw_only=True)
class _Trials:
    """Values that were tried with one offload, each once, in their order."""

    unknown: Unknown
    offload: Offload
    known: dict[int, bool] = field(default_factory=dict[int, bool])

    def fits(self, index: int) -> bool:
        value = self.unknown.values[index]
        if value not in self.known:
            try:
                search = Search(self.unknown.at(value).with_offload(self.offload))
                self.known[value] = search.something_fits(admits=self.unknown.admits(value))
            except UnsupportedError:  # a stated layout cannot be formed on so many GPUs
                self.known[value] = False
        return self.known[value]


def solve(unknown: Unknown) -> Plan:
    """The plan at the extreme value that fits, with `solved`; at the easiest value where none does.
    Raises UnsupportedError: the job cannot be forecast at all."""
    index, trials = _with_as_little_offload(unknown)
    easiest = 0 if unknown.asks == "largest" else len(unknown.values) - 1
    question = unknown.at(unknown.values[easiest if index is None else index])
    plan = answer(question if index is None else question.with_offload(trials.offload))
    solved = _solved(unknown, index, trials, plan)
    return replace(plan, job=question.job.to_json(), solved=solved)


def _with_as_little_offload(unknown: Unknown) -> tuple[int | None, _Trials]:
    """The index of the extreme value with the least offload that any fits with, and its trials."""
    easiest = unknown.at(unknown.values[0])
    tried: list[_Trials] = []
    for offload in offloads(easiest.job, easiest.cluster):
        tried.append(_Trials(unknown=unknown, offload=offload))
        fits, indices = tried[-1].fits, range(len(unknown.values))
        index = _largest(unknown, fits) if unknown.asks == "largest" else next(filter(fits, indices), None)
        if index is not None:
            return index, tried[-1]
    return None, tried[0]


def _largest(unknown: Unknown, fits: Callable[[int], bool]) -> int | None:
    """The index of the largest value that fits, by bisection: none fits after one that does not."""
    low, high = -1, len(unknown.values)
    if fits(high - 1):
        return high - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return None if low < 0 else low


def _solved(unknown: Unknown, index: int | None, trials: _Trials, plan: Plan) -> Solved:
    following = _next(unknown, index)
    value = None if index is None else unknown.values[index]
    lack = None if following is None else _lack(unknown, following, offload=trials.offload)
    if lack is not None and value is not None:
        lack += _by_offload(unknown, unknown.values.index(following), beyond=trials.offload)
    return Solved(
        key=unknown.key,
        asks=unknown.asks,
        value=value,
        written="none" if value is None else _written(unknown, value, plan, is_last=following is None),
        bounds=(unknown.values[0], unknown.values[-1]),
        limit=unknown.limit,
        next=None if following is None or lack is None else Following(value=following, reason=lack),
        tried=tuple(Tried(value=value, fits=fits) for value, fits in trials.known.items()),
    )


def _written(unknown: Unknown, value: int, plan: Plan, *, is_last: bool) -> str:
    """A value as finely as it is known, with what the leanest forecast leaves free."""
    written = unknown.written(value)
    if unknown.key == "gpus" or is_last:
        return written
    question = unknown.at(value)
    spare = max((c.memory.capacity_bytes - c.memory.peak_high_bytes for c in plan.candidates if c.fits), default=0)
    room = "hardly anything" if spare < 0.05 * GIB else f"{spare / GIB:.1f} GiB"
    return f"about {written} ({question.cluster.name}, {room} to spare)"


def _by_offload(unknown: Unknown, index: int, *, beyond: Offload) -> str:
    """With which offload, used only where no value fits without, a value fits; empty: none."""
    question = unknown.at(unknown.values[index])
    tried = offloads(question.job, question.cluster)
    for offload in tried[tried.index(beyond) + 1 :]:
        if _Trials(unknown=unknown, offload=offload).fits(index):
            return f"; train.offload: {offload} would hold it"
    return ""


def _next(unknown: Unknown, index: int | None) -> int | None:
    """The nearest value that does not fit, towards what was asked; None if the extreme one fits."""
    if index is None:
        return unknown.values[0 if unknown.asks == "largest" else -1]
    beside = index + 1 if unknown.asks == "largest" else index - 1
    return unknown.values[beside] if 0 <= beside < len(unknown.values) else None


def _lack(unknown: Unknown, value: int, *, offload: Offload) -> str:
    """Why a value does not fit: of the execution that needs least, or why none is considered."""
    try:
        question = unknown.at(value).with_offload(offload)
        search = Search(question)
        least = search.least_of_all(admits=unknown.admits(value))
    except UnsupportedError as error:
        return str(error)
    if isinstance(least, str):
        return least
    lack, forecast = search.lack_on_host(least), search.forecasts.of(least)
    reason = lack[1] if lack else why_not(forecast.work, forecast.memory, known={})
    one_of_many = question.job.stated_layout is None and question.cluster.num_gpus > 1
    hungry = ", the least hungry strategy," if one_of_many else ""
    return f"{least.layout.strategy}{hungry} {reason}"
