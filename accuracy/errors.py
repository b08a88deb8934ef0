"""Error arithmetic: relative errors, and what is said of many of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

WITHIN = 0.25


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of a set of relative errors.

    Attributes:
        bias: the median of the signed errors: above zero, too much is forecast.
        median: of their sizes.
        p90: nine in ten are at most this large.
        within: the share of at most a quarter.
    """

    count: int
    bias: float
    median: float
    p90: float
    within: float


def relative(forecast: float, measured: float) -> float:
    """How far a forecast lies above what was measured, as a share of it."""
    if measured <= 0:
        raise ValueError(f"measured is {measured}; a relative error needs a figure above zero")
    return forecast / measured - 1


def summarise(errors: Iterable[float]) -> Summary | None:
    """The summary of signed relative errors; None where there are none."""
    signed = sorted(errors)
    if not signed:
        return None
    sizes = sorted(map(abs, signed))
    return Summary(
        count=len(signed),
        bias=median(signed),
        median=median(sizes),
        p90=quantile(sizes, 0.9),
        within=sum(size <= WITHIN for size in sizes) / len(sizes),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the ordered values does not exceed."""
    if not ordered:
        raise ValueError("no values; a quantile needs at least one")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
