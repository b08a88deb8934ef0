"""The question turned round: not whether a value fits, but the largest or smallest value that does.

Halving is right only where more of a key never needs less memory, which a test holds for each key that is halved;
numbers of GPUs, where that need not be so, are tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardwise.errors import UnsupportedError
from shardwise.plan.choices import offloads
from shardwise.plan.collector import circles_unsought
from shardwise.plan.fitting import Known, can_be_planned, what_is_missing
from shardwise.plan.prospects import Prospects
from shardwise.plan.search import answer
from shardwise.plan.unknowns import Unknown
from shardwise.spec.execution import Offload
from shardwise.spec.plan import Plan
from shardwise.spec.solved import Solved


@dataclass(kw_only=True)
class _Trials:
    """Values that were tried with one offload, each once, in their order.

    Attributes:
        parts: numbers of GPUs, where those are asked for: a larger one is asked about its parts too.
        prospects: where numbers of GPUs are asked for, by the last of those whose places differ by less than twice.
    """

    unknown: Unknown
    offload: Offload
    known: dict[int, bool] = field(default_factory=dict[int, bool])
    parts: Known = field(default_factory=Known)
    prospects: dict[int, Prospects] = field(default_factory=dict[int, Prospects])

    def fits(self, index: int) -> bool:
        value = self.unknown.values[index]
        if value not in self.known:
            try:
                question = self.unknown.at(value).with_offload(self.offload)
                gpus = self.unknown.key == "gpus"
                self.known[value] = can_be_planned(
                    question,
                    admits=self.unknown.admits(value),
                    known=self.parts if gpus else None,
                    prospects=self._prospects_of(index) if gpus else None,
                )
            except UnsupportedError:  # a stated layout cannot be formed on so many GPUs
                self.known[value] = False
        return self.known[value]

    def _prospects_of(self, index: int) -> Prospects:
        most = len(self.unknown.values) - 1
        last = min((1 << index.bit_length()) - 1, most)
        if last not in self.prospects:
            question = self.unknown.at(self.unknown.values[last]).with_offload(self.offload)
            self.prospects[last] = Prospects(question, within=None if last == most else self._prospects_of(most))
        return self.prospects[last]


@circles_unsought()
def solve(unknown: Unknown) -> Plan:
    """The plan at the extreme value that fits, with `solved`; at the easiest value where none does.

    Raises:
        UnsupportedError: the job cannot be forecast at all.
    """
    index, tried = _with_as_little_offload(unknown)
    easiest = 0 if unknown.asks == "largest" else len(unknown.values) - 1
    value = unknown.values[easiest if index is None else index]
    # Trials of other keys leave out layouts that a plan may choose.
    hopeless = {trials.offload for trials in tried if unknown.key == "gpus" and trials.known.get(value) is False}
    question, found = unknown.at(value), tried[0 if index is None else -1]
    if unknown.key == "gpus" and index is not None and question.job.goal != "fastest":
        # With more offload a goal may choose fewer GPUs yet, where the answer is about those that hold the job so.
        plan = replace(answer(question.with_offload(found.offload)), job=question.job.to_json())
    else:
        plan = answer(question, hopeless=hopeless)
    return replace(plan, solved=_solved(unknown, index, found))


def _with_as_little_offload(unknown: Unknown) -> tuple[int | None, list[_Trials]]:
    """What comes out with the first offload that any value fits with, as in a plan; and all trials, in their order.

    A smaller value, or another GPU, is a better way than waiting for the host at every step.
    """
    find, easiest = (_largest if unknown.asks == "largest" else _smallest), unknown.at(unknown.values[0])
    tried: list[_Trials] = []
    for offload in offloads(easiest.job, easiest.cluster):
        trials = _Trials(unknown=unknown, offload=offload)
        tried.append(trials)
        index = find(unknown, trials.fits)
        if index is not None:
            return index, tried
    return None, tried


def _largest(unknown: Unknown, fits: Callable[[int], bool]) -> int | None:
    """The index of the largest value that fits, by halving: none fits behind one that does not."""
    low, high = -1, len(unknown.values)
    if fits(high - 1):
        return high - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return None if low < 0 else low


def _smallest(unknown: Unknown, fits: Callable[[int], bool]) -> int | None:
    return next((index for index in range(len(unknown.values)) if fits(index)), None)


def _solved(unknown: Unknown, index: int | None, trials: _Trials) -> Solved:
    following = _next(unknown, index)
    value = None if index is None else unknown.values[index]
    lack = None if following is None else _lack(unknown, following, offload=trials.offload)
    if lack is not None and value is not None:
        lack += _by_offload(unknown, unknown.values.index(following), beyond=trials.offload)
    return Solved(
        key=unknown.key,
        asks=unknown.asks,
        value=value,
        written="none" if value is None else unknown.written(value),
        lowest=unknown.values[0],
        highest=unknown.values[-1],
        limit=unknown.limit,
        next_value=following,
        next_reason=lack,
        tried=tuple(trials.known.items()),
    )


def _by_offload(unknown: Unknown, index: int, *, beyond: Offload) -> str:
    """With which offload, taken only where no value fits without, a value would fit; empty: with none."""
    question = unknown.at(unknown.values[index])
    tried = offloads(question.job, question.cluster)
    for offload in tried[tried.index(beyond) + 1 :]:
        if _Trials(unknown=unknown, offload=offload).fits(index):
            return f"; train.offload: {offload} would hold it"
    return ""


def _next(unknown: Unknown, index: int | None) -> int | None:
    """The nearest value that does not fit, towards what was asked for; None where the extreme one fits."""
    if index is None:
        return unknown.values[0 if unknown.asks == "largest" else -1]
    beside = index + 1 if unknown.asks == "largest" else index - 1
    return unknown.values[beside] if 0 <= beside < len(unknown.values) else None


def _lack(unknown: Unknown, value: int, *, offload: Offload) -> str:
    try:
        return what_is_missing(unknown.at(value).with_offload(offload), admits=unknown.admits(value))
    except UnsupportedError as error:
        return str(error)
