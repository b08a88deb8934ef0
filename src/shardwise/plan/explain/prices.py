"""What the hardware is rented for, in words: the price that costs are counted at, or that none is known."""

from __future__ import annotations

from shardwise.catalog.prices import cited
from shardwise.spec.cluster import Gpu
from shardwise.spec.job import Goal
from shardwise.spec.offers import format_dollars


def rent_of(gpu: Gpu, *, goal: Goal) -> str | None:
    """A sentence for the reasons of a choice; None for CPU processes, which have no price."""
    if gpu.kind == "cpu":
        return None
    if gpu.usd_per_hour is None:
        ranked = "; cheapest takes the fewest GPU hours" if goal == "cheapest" else ""
        return f"no price is known for the {gpu.name}, so no cost is forecast{ranked}"
    low, high = gpu.usd_per_hour
    what = f"the one price known for the {gpu.name}" if low == high else f"the middle of what the {gpu.name} rents for"
    return f"costs are at {what}, {format_dollars(gpu.usd_per_hour)} an hour{_where(gpu)}"


def _where(gpu: Gpu) -> str:
    citation = cited([gpu.name])
    return f" (prices of {citation.date}: {citation.source})" if citation else ""
