"""Offers: the hardware that a question left open, each with what a job takes on it; to and from JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardwise.spec.job import Goal
from shardwise.units import format_seconds

Range = tuple[float, float]

#: How an answer begins.
_CALLED: dict[Goal, str] = {"cheapest": "cheapest", "fastest": "fastest", "fewest-gpus": "smallest"}


def format_dollars(price: Range) -> str:
    """A range of prices with the digits that matter: `$1.53 to $3.44`, `$0.037 to $0.084`."""
    digits = 3 if price[1] < 1 else 2 if price[1] < 1000 else 0
    low, high = (f"${amount:,.{digits}f}" for amount in price)
    return low if low == high else f"{low} to {high}"


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _facts(option: Offer) -> str:
    return ", ".join(fact for fact in (option.seconds, option.price) if fact)


#: Keys of an offer that JSON has as lists.
_PAIRS = ("best_for", "usd_per_hour", "usd", "usd_per_million_tokens")


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One cluster, and what the job's best layout takes on it.

    Attributes:
        hardware: as a user writes it: `2 x 8x H100-SXM`.
        best_for: the goals for which nothing that was compared is better.
        strategy, written: the layout's name, and its degrees; None where nothing was laid out in full.
        peak_bytes, capacity_bytes: memory of the GPU that needs most, and what it has.
        usd_per_hour: of all its GPUs, from the lowest to the highest price; None where the catalogue has none.
        usd: of the whole run, likewise; None where its length is not known.
        usd_per_million_tokens: likewise.
        reason: why it was not laid out in full, or does not fit.
    """

    hardware: str
    num_gpus: int
    fits: bool
    best_for: tuple[Goal, ...] = ()
    strategy: str | None = None
    written: str | None = None
    peak_bytes: int | None = None
    capacity_bytes: int
    step_seconds: float | None = None
    total_seconds: float | None = None
    usd_per_hour: Range | None = None
    usd: Range | None = None
    usd_per_million_tokens: Range | None = None
    reason: str | None = None

    @property
    def price(self) -> str | None:
        """What the run costs, or where its length is not known a million tokens; None where there is no price."""
        if self.usd is not None:
            return format_dollars(self.usd)
        per_tokens = self.usd_per_million_tokens
        return None if per_tokens is None else f"{format_dollars(per_tokens)} per 1M tokens"

    @property
    def seconds(self) -> str | None:
        """How long the run takes, or where its length is not known a step; None where it was not laid out."""
        if self.total_seconds is not None:
            return format_seconds(self.total_seconds)
        return None if self.step_seconds is None else f"{format_seconds(self.step_seconds)} a step"

    def to_json(self) -> dict[str, Any]:
        """One of the `hardware_options` of plan.json."""
        pairs: dict[str, Any] = {key: None if (pair := getattr(self, key)) is None else list(pair) for key in _PAIRS}
        return {**asdict(self), **pairs}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Offer:
        """The inverse of `to_json`."""
        pairs: dict[str, Any] = {key: None if data[key] is None else tuple(data[key]) for key in _PAIRS}
        return cls(**{**data, **pairs})


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What was compared, the best for the job's goal first; what does not fit stands last.

    Attributes:
        goal: the job's.
        price_date, price_source: when and where the prices were read; None where nothing that was compared has one.
    """

    goal: Goal
    price_date: str | None
    price_source: str | None
    options: tuple[Offer, ...]

    @property
    def laid_out(self) -> tuple[Offer, ...]:
        """Those whose time and memory are forecast."""
        return tuple(option for option in self.options if option.step_seconds is not None)

    @property
    def sentence(self) -> str:
        """The best hardware for each goal, the job's first."""
        best: dict[Goal, Offer] = {goal: option for option in self.options for goal in option.best_for}
        if not best:
            return "the job fits on nothing that was compared"
        goals = sorted(best, key=lambda goal: goal != self.goal)
        answers = [f"{_CALLED[goal]}: {best[goal].hardware} ({_facts(best[goal])})" for goal in goals]
        if self.goal not in best:  # only the cheapest may be wanting
            answers.insert(0, f"{_CALLED[self.goal]}: not known, for nothing that fits has a price")
        return "; ".join(answers)

    @property
    def prices(self) -> str:
        """When and where the prices were read, as the beginning of a sentence."""
        if self.price_date is None:
            return "no price is known for what was compared"
        ordered = "from the lowest to the highest, the cheapest by the lowest"
        return f"prices of {self.price_date}, {ordered}: {self.price_source}"

    def notes(self) -> list[str]:
        """What has no price, what else fits, and what does not: those with one reason together."""
        by_reason: dict[tuple[bool, str], list[str]] = {}
        for option in self.options:
            if option.step_seconds is None:
                by_reason.setdefault((option.fits, option.reason or ""), []).append(option.hardware)
        alone = [f"{names[0]} ({why})" for (fits, why), names in by_reason.items() if fits and len(names) == 1]
        unpriced = [option.hardware for option in self.laid_out if option.usd_per_hour is None]
        return [
            *([f"no price is known for {_listed(unpriced)}"] if unpriced else []),
            *([f"also fit: {', '.join(alone)}"] if alone else []),
            *(f"also fit, {why}: {_listed(names)}" for (fits, why), names in by_reason.items() if fits and names[1:]),
            *(f"{_listed(names)}: {reason}" for (fits, reason), names in by_reason.items() if not fits),
        ]

    def to_json(self) -> dict[str, Any]:
        """The keys of plan.json that open hardware adds."""
        return {
            "hardware_options": [option.to_json() for option in self.options],
            "prices": None if self.price_date is None else {"date": self.price_date, "source": self.price_source},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Offers | None:
        """Of a whole plan.json; None where its hardware was given."""
        if "hardware_options" not in data:
            return None
        prices: dict[str, str] = data["prices"] or {}
        return cls(
            goal=data["job"]["goal"],
            price_date=prices.get("date"),
            price_source=prices.get("source"),
            options=tuple(Offer.from_json(option) for option in data["hardware_options"]),
        )
