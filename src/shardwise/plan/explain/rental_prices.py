"""The sentence of a plan about prices: what its cost is counted at, or that no price is known."""

from __future__ import annotations

from shardwise.catalog.prices import cited, price_of
from shardwise.spec.cluster import Gpu
from shardwise.spec.job import Goal
from shardwise.spec.offers import format_dollars


def price_sentence(gpu: Gpu, *, goal: Goal) -> str | None:
    """A sentence for the reasons of a choice; None for CPU processes, which have no price."""
    if gpu.kind == "cpu":
        return None
    typical = gpu.typical_usd_per_hour
    if typical is not None:
        return f"costs are at {_kind_of(gpu)} the {gpu.name}, {format_dollars(typical)} an hour{_where(gpu)}"
    ranked = "; cheapest takes the fewest GPU hours" if goal == "cheapest" else ""
    if gpu.usd_per_hour is None:
        return f"no price is known for the {gpu.name}, so no cost is forecast{ranked}"
    lowest = format_dollars(gpu.usd_per_hour[0])
    return f"only a lowest offer is known for the {gpu.name}, {lowest} an hour, so no cost is forecast{ranked}"


def _kind_of(gpu: Gpu) -> str:
    price = price_of(gpu.name)
    if price is None or price.typical != gpu.typical_usd_per_hour:
        return "the price of"
    return (
        "the one price known for" if price.providers == 1 else f"the median of {price.providers} providers' prices for"
    )


def _where(gpu: Gpu) -> str:
    citation = cited([gpu.name])
    return f" (prices of {citation.date}: {citation.source})" if citation else ""
