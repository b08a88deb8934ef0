"""Hardware options: what a question left open, with what a job takes on each; to and from JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from shardwise.spec.job.keys import Goal
from shardwise.units import format_gib, format_seconds

Range = tuple[float, float]

#: How an answer begins.
_CALLED: dict[Goal, str] = {"cheapest": "cheapest", "fastest": "fastest", "fewest-gpus": "smallest"}
#: So many that do not fit are named.
_MOST_NAMED = 6


def format_dollars(price: Range | float) -> str:
    """A price or a range of them with the digits that matter: `$1.53 to $3.44`, `$0.037`."""
    pair = price if isinstance(price, tuple) else (price, price)
    digits = 3 if pair[1] < 0.1 else 2 if pair[1] < 1000 else 0
    low, high = (f"${amount:,.{digits}f}" for amount in pair)
    return low if low == high else f"{low} to {high}"


def _or_more(typical: float | None, known: Range | None) -> str | None:
    least = None if known is None else f"from {format_dollars(known[0])}"
    return least if typical is None else format_dollars(typical)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One cluster, and what the job's best execution takes on it.

    Attributes:
        hardware: as a user writes it: `2 x 8x H100-SXM`.
        fits: whether the job does; None where it was not looked at, for something else is as cheap
            and as fast.
        shown: it is one of the few that reports show.
        best_for: the goals for which nothing that was compared is better.
        strategy, written: the layout's name, and its degrees.
        peak_bytes, capacity_bytes: memory of the GPU that needs most, and what it has.
        usd_per_hour: of all its GPUs, from the lowest offer to the highest price; None where none
            is known.
        usd: of the whole run, likewise; None where its length is not known.
        usd_per_million_tokens: likewise.
        typical_usd_per_hour, typical_usd, typical_usd_per_million_tokens: at the median price of
        all providers; None where only lowest offers are known.
        price_providers: how many providers that is the median of.
        reason: why it does not fit, or was not looked at.
    """

    hardware: str
    num_gpus: int
    fits: bool | None
    shown: bool = False
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
    typical_usd_per_hour: float | None = None
    typical_usd: float | None = None
    typical_usd_per_million_tokens: float | None = None
    price_providers: int = 0
    reason: str | None = None

    @property
    def cost(self) -> str | None:
        """The run's cost at the typical price or the lowest; without a length a million tokens'."""
        if self.total_seconds is not None:
            return _or_more(self.typical_usd, self.usd)
        per_tokens = _or_more(self.typical_usd_per_million_tokens, self.usd_per_million_tokens)
        return per_tokens and f"{per_tokens} per 1M tokens"

    @property
    def duration(self) -> str | None:
        """How long the run takes, or a step if the length is unknown; None: not looked at."""
        if self.total_seconds is not None:
            return format_seconds(self.total_seconds)
        return None if self.step_seconds is None else f"{format_seconds(self.step_seconds)} a step"

    def cells(self) -> tuple[str, ...]:
        """Its row of a report; a typical price is marked where it is the price of one provider."""
        typical, lowest, peak = self.typical_usd_per_hour, self.usd_per_hour, self.peak_bytes
        return (
            self.hardware,
            ", ".join(_CALLED[goal] for goal in self.best_for),
            self.written or "",
            (self.duration or "").removesuffix(" a step"),
            (self.cost or "not known").removesuffix(" per 1M tokens"),
            "not known" if typical is None else format_dollars(typical) + "*" * (self.price_providers == 1),
            "not known" if lowest is None else format_dollars(lowest[0]),
            ("" if peak is None else f"{format_gib(peak).removesuffix(' GiB')} of ") + format_gib(self.capacity_bytes),
        )


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What was compared: first what is shown, best for the goal first, what does not fit last.

    Attributes:
        goal: the job's.
        price_date, price_source: when and where the prices shown were read; None where there are
            none.
        start_up: what of starting a machine is in times and costs; None where nothing is.
    """

    goal: Goal
    price_date: str | None
    price_source: str | None
    options: tuple[Offer, ...]
    start_up: str | None = None

    @property
    def shown(self) -> tuple[Offer, ...]:
        """The rows of a report."""
        return tuple(option for option in self.options if option.shown)

    def table(self) -> list[tuple[str, ...]]:
        """The rows of a report as texts, after the names of columns; the first three are words."""
        known = any(option.total_seconds is not None for option in self.shown)
        time, cost = ("run", "cost") if known else ("step", "per 1M tokens")
        names = ("hardware", "best for", "layout", time, cost, "typical/h", "lowest/h", "peak memory")
        return [names, *(option.cells() for option in self.shown)]

    @property
    def sentence(self) -> str:
        """The best hardware for each goal, the job's first."""
        best: dict[Goal, Offer] = {goal: option for option in self.options for goal in option.best_for}
        if not best:
            return "the job fits on nothing that was compared"
        answers: list[str] = []
        for goal in sorted(best, key=lambda goal: goal != self.goal):
            facts = ", ".join(fact for fact in (best[goal].duration, best[goal].cost) if fact)
            answers.append(f"{_CALLED[goal]}: {best[goal].hardware} ({facts})")
        if self.goal not in best:  # only the cheapest may be unknown
            answers.insert(0, f"{_CALLED[self.goal]}: not known, for nothing that fits has a typical price")
        return "; ".join(answers)

    @property
    def prices(self) -> str:
        """What the prices are, and when and where they were read."""
        if self.price_date is None:
            return "no price is known for what was compared"
        one = " (*: of one)" if any(cell.endswith("*") for option in self.shown for cell in option.cells()) else ""
        return (
            f"typical: the median of providers' on-demand prices{one}, which costs are counted at; lowest: the lowest "
            f"offer, which may be for a single machine; prices of {self.price_date}: {self.price_source}"
        )

    def notes(self) -> list[str]:
        """What else was compared, and what does not fit: those with one reason together."""
        others = sum(option.fits is not False and not option.shown for option in self.options)
        said = [self.start_up] if self.start_up else []
        said += [f"{others} more are no better in price and time, or hardly; --json lists them"] if others else []
        unfit = [option for option in self.options if option.fits is False]
        if len(unfit) > _MOST_NAMED:
            return [*said, f"the job does not fit, or is not trained, on {len(unfit)} more; --json says why"]
        by_reason: dict[str, list[str]] = {}
        for option in unfit:
            by_reason.setdefault(option.reason or "", []).append(option.hardware)
        return said + [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]

    def to_json(self) -> dict[str, Any]:
        """The keys of plan.json that open hardware adds."""
        return {
            "hardware_options": [asdict(option) for option in self.options],
            **({"start_up": self.start_up} if self.start_up else {}),
            "prices": None if self.price_date is None else {"date": self.price_date, "source": self.price_source},
        }
