"""The starts of a run: a stopped one may go on with other settings, whose figures are not those of the forecast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from shardwise.report.fields import number, section, text, whole
from shardwise.spec.plan import Plan

#: The first steps of a start allocate, compile and warm the caches; they say nothing about the rest.
WARM_UP_STEPS = 3

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What was run, as far as it is known: of another version, an execution may have other keys.

    Attributes:
        execution: as `Execution.to_json` writes it.
        hardware: by its name.
    """

    execution: dict[str, Any] | None
    hardware: str | None

    def may_be(self, other: Ran) -> bool:
        """Whether nothing that is known of both differs."""
        return _agree(self.execution, other.execution) and _agree(self.hardware, other.hardware)


def noted(data: dict[str, Any] | None) -> Ran:
    """What a line of starts.jsonl, or measured.json, says."""
    return Ran(execution=section(data, "execution"), hardware=text(data, "hardware"))


def planned(plan: Plan | None) -> Ran:
    """What a plan chose."""
    best = None if plan is None else plan.best
    return Ran(
        execution=None if best is None else best.execution.to_json(),
        hardware=None if plan is None else text(plan.hardware, "name"),
    )


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return all(_agree(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return one is None or other is None or one == other


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run, as its worker noted it when training began.

    Attributes:
        first_step: the first that it was to take. Records from there on are its own, up to the next start's.
        ran: with which settings, and on what.
        world_size: its ranks.
        peak_flops: dense peak of one device, by which it counted its MFU.
    """

    first_step: int
    ran: Ran
    world_size: int | None
    peak_flops: float | None


def starts_of(lines: Iterable[dict[str, Any]]) -> tuple[Start, ...]:
    """Those that say where they began, in order."""
    return tuple(
        Start(
            first_step=first,
            ran=noted(line),
            world_size=whole(line, "world_size"),
            peak_flops=number(line, "peak_flops"),
        )
        for line in lines
        if (first := whole(line, "first_step")) is not None
    )


def start_of(step: int, starts: Sequence[Start]) -> int | None:
    """The number of the start that took a step; None where none is known to."""
    return next((number for number in reversed(range(len(starts))) if starts[number].first_step <= step), None)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Steps that were taken with the settings of a plan.

    Attributes:
        spans: their records, of each start apart.
        all_steps: whether every recorded step is among them.
    """

    spans: tuple[tuple[Record, ...], ...]
    all_steps: bool

    @property
    def records(self) -> list[Record]:
        """All of them, in order."""
        return [record for span in self.spans for record in span]

    @property
    def steady(self) -> list[Record]:
        """Those after the warm-up of their start; all of them where no start has more than its warm-up."""
        return self._warmed_up or self.records

    @property
    def _warmed_up(self) -> list[Record]:
        return [record for span in self.spans for record in span[WARM_UP_STEPS:]]

    @property
    def covers(self) -> str:
        """Which the steady ones are, in words."""
        steady = self.steady
        if not steady:
            return "" if self.all_steps else "no step was taken with these settings"
        where = "" if self.all_steps else " with these settings"
        first, last = steady[0]["step"], steady[-1]["step"]
        if len(steady) == last - first + 1:
            return f"median of steps {first:,} to {last:,}{where}"
        how = "after the warm-up of each start" if self._warmed_up else "which are all warm-up"
        return f"median of {len(steady):,} steps{where} from {first:,} to {last:,}, {how}"


def taken(records: Sequence[Record], starts: Sequence[Start], plan: Ran) -> Taken:
    """The steps of a run that were taken with a plan's settings; all of them where no start was noted.

    Args:
        records: of its steps, in order.
        starts: of the run. What came before the first that was noted is not known.
        plan: what is forecast.
    """
    each = [(start, tuple(own)) for start, own in groupby(records, key=lambda one: start_of(one["step"], starts))]
    spans = tuple(own for start, own in each if not starts or (start is not None and starts[start].ran.may_be(plan)))
    return Taken(spans=spans, all_steps=len(spans) == len(each))
