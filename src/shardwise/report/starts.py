"""The starts of a run: a stopped one may go on under another layout, whose figures are not those of the one named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from shardwise.report.fields import number, section, whole

#: The first steps of a start allocate, compile and warm the caches; they say nothing about the rest.
WARM_UP_STEPS = 3

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run, as its worker noted it when training began.

    Attributes:
        first_step: the first that it was to take. Records from there on are its own, up to the next start's.
        execution: what it ran; None where that was not noted.
        world_size: its ranks.
        peak_flops: dense peak of one device, by which it counted its MFU.
    """

    first_step: int
    execution: dict[str, Any] | None
    world_size: int | None
    peak_flops: float | None


def starts_of(lines: Iterable[dict[str, Any]]) -> tuple[Start, ...]:
    """Those that say where they began, in order."""
    return tuple(
        Start(
            first_step=first,
            execution=section(line, "execution"),
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
    """Steps that were taken under one execution.

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
        return [record for span in self.spans for record in span[WARM_UP_STEPS:]] or self.records

    @property
    def covers(self) -> str:
        """Which the steady ones are, in words."""
        steady = self.steady
        if not steady:
            return "" if self.all_steps else "no step was taken under this layout"
        where = "" if self.all_steps else " under this layout"
        first, last = steady[0]["step"], steady[-1]["step"]
        if len(steady) == last - first + 1:
            return f"median of steps {first:,} to {last:,}{where}"
        return f"median of {len(steady):,} steps{where} from {first:,} to {last:,}, after the warm-up of each start"


def taken(records: Sequence[Record], starts: Sequence[Start], execution: dict[str, Any] | None) -> Taken:
    """The steps of a run that were taken under an execution; all of them where the two cannot be told apart.

    Args:
        records: of its steps, in order.
        starts: of the run; none where they were not noted.
        execution: as `Execution.to_json` writes it; None where it is not known.
    """
    each = [(start, tuple(own)) for start, own in groupby(records, key=lambda one: start_of(one["step"], starts))]
    spans = tuple(own for start, own in each if start is None or is_of(starts[start], execution))
    return Taken(spans=spans, all_steps=len(spans) == len(each))


def is_of(start: Start, execution: dict[str, Any] | None) -> bool:
    """Whether a start ran an execution, as far as both are known."""
    return execution is None or start.execution is None or start.execution == execution
