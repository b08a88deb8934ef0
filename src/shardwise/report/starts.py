"""The starts of a run: the forecast does not apply to a run resumed with other settings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self, cast

from shardwise.report.fields import number, section, text, whole
from shardwise.spec.plan.forecast import Plan

#: The first steps of a start allocate, compile and fill caches; they are left out of medians.
WARM_UP_STEPS = 3

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RanJob:
    """What was run, as far as it is known; another version's execution may have other keys."""

    execution: dict[str, Any] | None
    hardware: str | None

    def may_be(self, other: Self) -> bool:
        """Whether everything that both know is equal."""
        return _agree(self.execution, other.execution) and _agree(self.hardware, other.hardware)


def noted(data: dict[str, Any] | None) -> RanJob:
    """What a line of starts.jsonl, or measured.json, says."""
    return RanJob(execution=section(data, "execution"), hardware=text(data, "hardware"))


def planned(plan: Plan | None) -> RanJob:
    """What a plan chose."""
    execution = plan.best.execution.to_json() if plan and plan.best else None
    return RanJob(execution=execution, hardware=text(plan.hardware, "name") if plan else None)


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return all(_agree(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return one is None or other is None or one == other


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start of a run; its records go from its first step up to the next start's."""

    first_step: int
    ran: RanJob
    world_size: int | None
    peak_flops: float | None


def starts_of(lines: Iterable[dict[str, Any]]) -> tuple[Start, ...]:
    """The lines that have a first step, in order."""
    return tuple(
        Start(
            first_step=first, ran=noted(one), world_size=whole(one, "world_size"), peak_flops=number(one, "peak_flops")
        )
        for one in lines
        if (first := whole(one, "first_step")) is not None
    )


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Records of the steps taken with a plan's settings, by start, and whether these are all."""

    spans: tuple[tuple[Record, ...], ...]
    all_steps: bool

    def records(self, *, after: int = 0) -> list[Record]:
        """In order, without the first `after` ones of each start."""
        return [record for span in self.spans for record in span[after:]]

    @property
    def steady(self) -> list[Record]:
        """Those after the warm-up of their start; all of them where there are no others."""
        return self.records(after=WARM_UP_STEPS) or self.records()

    @property
    def covers(self) -> str:
        """What the steady steps are, in words."""
        steady = self.steady
        if not steady:
            return "" if self.all_steps else "no step was taken with these settings"
        where = "" if self.all_steps else " with these settings"
        first, last = steady[0]["step"], steady[-1]["step"]
        if len(steady) == last - first + 1:
            return f"median of steps {first:,} to {last:,}{where}"
        is_warm = self.records(after=WARM_UP_STEPS)
        how = "after the warm-up of each start" if is_warm else "which are all warm-up"
        return f"median of {len(steady):,} steps{where} from {first:,} to {last:,}, {how}"


def taken(records: Sequence[Record], starts: Sequence[Start], plan: RanJob) -> Taken:
    """The steps that were taken with a plan's settings; all of them where no start was recorded."""

    def start_of(record: Record) -> Start | None:
        return next((start for start in reversed(starts) if start.first_step <= record["step"]), None)

    each = [(start, tuple(own)) for start, own in groupby(records, key=start_of)]
    spans = tuple(own for start, own in each if not starts or (start is not None and start.ran.may_be(plan)))
    return Taken(spans=spans, all_steps=len(spans) == len(each))
