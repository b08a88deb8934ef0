"""What GPUs are rented for: the lists of prices.toml, each of one document and one day.

A GPU in no list has no price; none is guessed.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from statistics import median
from typing import Any


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """On-demand prices as one document had them on one day, in dollars for one GPU and one hour.
    `date`: of the document: year and month, and the day where it is known; `source`: what the
    document is; `url`: where it is found; `usd_per_hour`: GPU -> provider -> its price; `lowest`:
    GPU -> the lowest offer on a marketplace."""

    date: str
    source: str
    url: str
    usd_per_hour: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    lowest: dict[str, float] = field(default_factory=dict[str, float])

    def has(self, name: str) -> bool:
        """Whether a GPU has a price in it."""
        return name in self.usd_per_hour or name in self.lowest


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one GPU is rented for, in dollars per hour. `lowest`, `highest`: over all prices and
    offers. `typical`: the median over the providers, of those with two prices of their median; None
    where only lowest offers are known. `providers`: how many it is the median of."""

    lowest: float
    highest: float
    typical: float | None
    providers: int


@dataclass(frozen=True, kw_only=True)
class Citation:
    """When and where the prices of some GPUs were read. `date`: of the documents, `2025-06 to
    2026-09` where these are several; `source`: the document, or all of them, each with its date."""

    date: str
    source: str


@cache
def read_table(name: str, *, package: str = "shardwise.catalog") -> dict[str, Any]:
    """A TOML file of the catalogue, or of another package, which nobody changes."""
    return tomllib.loads((resources.files(package) / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def price_lists() -> tuple[PriceList, ...]:
    """All of prices.toml, in its order."""
    return tuple(PriceList(**row) for row in read_table("prices").values())


@cache
def price_of(name: str) -> Price | None:
    """The price of a GPU of the catalogue; None where none is known."""
    providers: dict[str, float] = {}
    for prices in price_lists():
        providers = {**prices.usd_per_hour.get(name, {}), **providers}
    companies: dict[str, list[float]] = {}
    for provider, price in providers.items():
        companies.setdefault(provider.removesuffix("-community"), []).append(price)
    every = [*providers.values(), *(prices.lowest[name] for prices in price_lists() if name in prices.lowest)]
    if not every:
        return None
    typical = round(median(map(median, companies.values())), 3) if companies else None
    return Price(lowest=min(every), highest=max(every), typical=typical, providers=len(companies))


def cited(names: Iterable[str]) -> Citation | None:
    """The documents that the prices of some GPUs are from; None where none of them has a price."""
    wanted = set(names)
    lists = [prices for prices in price_lists() if any(prices.has(name) for name in wanted)]
    if not lists:
        return None
    if len(lists) == 1:
        return Citation(date=lists[0].date, source=lists[0].source)
    first, last = min(prices.date for prices in lists), max(prices.date for prices in lists)
    return Citation(date=f"{first} to {last}", source="; ".join(f"{p.source}, {p.date}" for p in lists))
