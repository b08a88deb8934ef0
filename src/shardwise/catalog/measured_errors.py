"""Errors of memory forecasts that were measured, and the chance that follows that a plan fits"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cache

from shardwise.catalog.prices import read_table
from shardwise.spec.layout.axes import Layout

OWN, OTHERS = "this trainer on CPU processes", "other stacks"
#: A group of fewer rows is pooled with all of its stack.
LEAST_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class Errors:
    """One group of measured_errors.toml. `ratios`: measured over forecast, in growing order, with
    as much weight between each two; `rows`, `sources`: that they are of."""

    name: str
    rows: int
    sources: int
    ratios: tuple[float, ...]

    def chance_below(self, ratio: float) -> float:
        """The share of measured runs whose memory was at most so many times their forecast; never
        more certain than the number of rows allows (Vovk et al., Algorithmic Learning in a Random
        World, 2005: conformal predictors)."""
        at = bisect_right(self.ratios, ratio)
        least = 1 / (self.rows + 1)
        share = (at - 0.5) / len(self.ratios)
        if 0 < at < len(self.ratios):
            low, high = self.ratios[at - 1], self.ratios[at]
            share += (ratio - low) / (high - low) / len(self.ratios) if high > low else 0.0
        elif at == len(self.ratios):
            share = 1.0
        return min(1 - least, max(least, share))


def layout_kind(layout: Layout) -> str:
    """Split: a rank has part of each product; sharded: it gathers what it lacks; else whole."""
    if layout.world_size > layout.data_world_size:
        return "split"
    return "sharded" if layout.dp_shard > 1 else "whole"


def group_name(stack: str, kind: str = "") -> str:
    """Of a group."""
    return f"{stack}, {kind}" if kind else stack


@cache
def _groups() -> dict[str, Errors]:
    made = read_table("measured_errors").items()
    return {name: replace(Errors(name=name, **row), ratios=tuple(row["ratios"])) for name, row in made}


def errors_of(stack: str, layout: Layout) -> Errors:
    """Those of the layout's kind, or of the whole stack where these are too few."""
    found = _groups()
    return found.get(group_name(stack, layout_kind(layout))) or found[stack]
