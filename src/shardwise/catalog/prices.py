"""What GPUs are rented for: the lists of prices.toml, each of one document and one day.

Every price has a date and a source because it stands in a list that has them. A GPU in no list has no price: a cost
that was guessed would be worse than none.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, kw_only=True)
class PriceList:
    """On-demand prices as one document had them on one day.

    Attributes:
        date: of the document: year and month, and the day where it is known.
        source: what the document is.
        url: where it is found.
        usd_per_hour: GPU -> the lowest and the highest price of one, in dollars.
    """

    date: str
    source: str
    url: str
    usd_per_hour: dict[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Citation:
    """When and where the prices of some GPUs were read.

    Attributes:
        date: of the documents, `2025-06 to 2026-09` where these are several.
        source: the document, or all of them, each with its date.
    """

    date: str
    source: str


@cache
def price_lists() -> tuple[PriceList, ...]:
    """All of prices.toml, in its order."""
    text = (resources.files("shardwise.catalog") / "prices.toml").read_text(encoding="utf-8")
    return tuple(
        PriceList(
            date=row["date"],
            source=row["source"],
            url=row["url"],
            usd_per_hour={name: (low, high) for name, (low, high) in row["usd_per_hour"].items()},
        )
        for row in tomllib.loads(text).values()
    )


def price_of(name: str) -> tuple[float, float] | None:
    """The lowest and the highest price of a GPU of the catalogue for an hour, in dollars; None where none is known."""
    found = [prices.usd_per_hour[name] for prices in price_lists() if name in prices.usd_per_hour]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def cited(names: Iterable[str]) -> Citation | None:
    """The documents that the prices of some GPUs are from; None where none of them has a price."""
    wanted = set(names)
    lists = [prices for prices in price_lists() if wanted & prices.usd_per_hour.keys()]
    if not lists:
        return None
    if len(lists) == 1:
        return Citation(date=lists[0].date, source=lists[0].source)
    first, last = min(prices.date for prices in lists), max(prices.date for prices in lists)
    return Citation(date=f"{first} to {last}", source="; ".join(f"{p.source}, {p.date}" for p in lists))
