"""Plan: candidate executions with forecasts, the choice, why not others; to and from plan.json.

The planner writes it, the trainer reads it, and neither knows the other. The JSON is versioned and
stable: keys are added, never renamed.
"""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field

from shardwise.spec.data_facts import DataFacts
from shardwise.spec.job.strict import EXACT, OPEN
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.beside import Chance, Disk, OnStack, PlannedChange, RunForecast
from shardwise.spec.plan.found import FoundBatch, Solved
from shardwise.spec.plan.offers import Offers, format_dollars
from shardwise.units import format_count, format_gib, format_seconds

VERSION = 1

#: The parts of a rank's memory, in the order they are drawn.
PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "communication", "temporary", "context")


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Peak memory of ranks that are alike.

    Attributes:
        ranks: the ranks this holds for.
        peak_bytes: the most that is alive at one instant.
        parts: bytes alive at that instant, by the names of `PARTS`; they add up to `peak_bytes`.
    """

    ranks: tuple[int, ...]
    peak_bytes: int
    parts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Memory of the rank that needs most, with its interval, and of every distinct rank.
    `peak_bytes`: allocated (not reserved) plus bytes outside the allocator; `peak_reserved_bytes`:
    with rounding and fragmentation; `peak_instant`: when the peak is: `backward of layer 31`."""

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    capacity_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int
    peak_low_bytes: int
    peak_high_bytes: int
    peak_instant: str
    ranks: tuple[RankMemory, ...]


@dataclass(frozen=True, kw_only=True)
class SeenMemory:
    """The memory that is forecast for the rows that a run has seen while it was measured: bytes
    inside the allocator, by rank.

    Attributes:
        first, later: tokens of the longest row, with padding, of the first forwards of steps, and
            of their later ones; 0 where steps have one. Rows of a step are sorted, the longest
            first.
        peaks: the most at one instant of training.
        phases: the most in each phase of `spec.run.PHASES`.
    """

    first: int
    later: int
    peaks: dict[int, int]
    phases: dict[int, dict[str, int]]

    @property
    def rows(self) -> str:
        """What was seen, in words."""
        later = f" in the first forward of a step and {self.later:,} in later ones" if self.later else ""
        return f"rows of {self.first:,} tokens{later}"


@dataclass(frozen=True, kw_only=True)
class TimeForecast:
    """Time of one optimizer step and of the whole run; utilisations are shares from 0 to 1.
    `total_seconds`: None where the number of steps is not known."""

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    step_seconds: float
    tokens_per_second: float
    mfu: float
    gpu_utilization: float
    compute_utilization: float
    total_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Rental price; None: none is known. `at_least`: the lowest offer's, as no other is known."""

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    usd: float | None = None
    usd_per_hour: float | None = None
    at_least: bool = False


class Sentence(str):
    """A reason with its `short` form and its kind: `always` is shown whatever else is, `elsewhere`
    stands in another place of the screen too, or is rarely asked for; others say of what it is."""

    kind = short = ""

    def __new__(cls, text: str, kind: str = "", short: str = "") -> Self:
        """A text of that kind."""
        made = super().__new__(cls, text)
        made.kind, made.short = kind, short
        return made


def kind_of(reason: str) -> str:
    """The kind of a sentence; a plain text has none."""
    return getattr(reason, "kind", "")


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A way of spreading the work that was not taken, and the sentence that says why."""

    strategy: str
    layout: Layout
    reason: str


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One execution with its forecast.

    Attributes:
        not_trained: what of it this version plans but does not train, as sentences; empty where it
            trains all of it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = EXACT

    execution: Execution
    fits: bool
    memory: MemoryForecast
    time: TimeForecast
    cost: Cost = Cost()
    reasons: tuple[str, ...] = ()
    not_trained: tuple[str, ...] = ()

    @property
    def worst_rank(self) -> RankMemory:
        """The rank with the highest peak."""
        return max(self.memory.ranks, key=lambda rank: rank.peak_bytes)

    def to_json(self) -> dict[str, Any]:
        """The product page's candidate object."""
        forecast = asdict(self)
        del forecast["execution"]
        return {**self.execution.to_json(), **forecast}

    @property
    def rejection(self) -> Rejection:
        """Why it is not taken, which its reasons say."""
        layout = self.execution.layout
        return Rejection(
            strategy=layout.strategy,
            layout=layout,
            reason=self.reasons[0] if len(self.reasons) == 1 else "; ".join(self.reasons),
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of `plan`.

    Attributes:
        candidates: ranked for the goal; those that do not fit stand last.
        chosen: an index into `candidates`, or None where none fits.
        advice: what to do, where none fits.
        solved: the key that the job was solved for, with the value that this is the plan of.
        offers: what else was compared, where the job left its hardware open; this is the plan of
            the first of them.
        disk: what a run of the chosen candidate writes; None where none fits.
        found_batch: the trials that the micro-batch was found by, whether it is forecast to fit or
            not.
        data: what is known of the rows to train on, where they were counted before.
        data_notes: what is to be said of them, as sentences.
        run: the whole run; None in a plan of an earlier version.
        changes: what would save time, money or the host's memory, each planned.
        what_if: the job as it is and with other changes, where that was asked.
        chance: that the chosen candidate fits; None where none does, or it was not asked for.
        on_stack: what the trainer that it was planned for needs; None where that is this one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    job: dict[str, Any]
    hardware: dict[str, Any]
    model: dict[str, Any]
    candidates: tuple[Candidate, ...]
    chosen: Annotated[int, Field(ge=0)] | None
    rejected: tuple[Rejection, ...] = field(default=())
    advice: tuple[str, ...] = ()
    solved: Solved | None = None
    offers: Offers | None = None
    found_batch: FoundBatch | None = None
    disk: Disk | None = None
    data: DataFacts | None = None
    data_notes: tuple[str, ...] = ()
    run: RunForecast | None = None
    changes: tuple[PlannedChange, ...] = ()
    what_if: tuple[PlannedChange, ...] = ()
    on_stack: OnStack | None = None
    chance: Chance | None = None

    @property
    def best(self) -> Candidate | None:
        """The chosen candidate."""
        return None if self.chosen is None else self.candidates[self.chosen]

    def first(self, most: int) -> list[tuple[int, Candidate]]:
        """The first candidates with their indices, and the chosen one in any case."""
        return [(index, one) for index, one in enumerate(self.candidates) if index < most or index == self.chosen]

    @property
    def notes(self) -> list[str]:
        """What is to be said of the hardware, as sentences (who holds memory of it, what is not
        known of it), of the data, and of the trainer that the figures are of."""
        of_trainer: list[str] = []
        if self.on_stack is not None:
            of_trainer.append(self.on_stack.sentence)
        elif dict(self.job.get("train") or {}).get("loss") == "full":
            of_trainer.append(
                "train.loss: full: the figures are of this trainer; others keep more copies of their logits, which "
                "--for TARGET counts"
            )
        return [*(str(note) for note in self.hardware.get("notes", ())), *self.data_notes, *of_trainer]

    def to_json(self) -> dict[str, Any]:
        """The whole of plan.json; what was not asked for has no key."""
        parts = ("solved", "found_batch", "disk", "data", "run", "on_stack", "chance")
        return {
            "version": VERSION,
            "job": self.job,
            "hardware": self.hardware,
            "model": self.model,
            "chosen": self.chosen,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "rejected": [asdict(rejection) for rejection in self.rejected],
            "advice": list(self.advice),
            **{name: asdict(part) for name in parts if (part := getattr(self, name)) is not None},
            **{name: [asdict(one) for one in some] for name in ("changes", "what_if") if (some := getattr(self, name))},
            **({} if self.offers is None else self.offers.to_json()),
            **({"data_notes": list(self.data_notes)} if self.data_notes else {}),
        }


def named(strategy: str, layout: Layout) -> str:
    """A strategy with the degrees of its layout."""
    return f"{strategy} ({layout.written})" if layout.world_size > 1 else strategy


def verdict(plan: Plan) -> str:
    """Whether it fits, with what, how long and how dear the run is, with which memory and speed."""
    if plan.best is None:
        return f"nothing fits on {plan.hardware.get('name', 'this machine')}"
    execution, time = plan.best.execution, plan.best.time
    offload = "" if execution.offload == "none" else f" with offload {execution.offload}"
    memory, run = plan.best.memory, ""
    offer = plan.offers.options[0] if plan.offers and plan.offers.start_up else None
    if time.total_seconds is not None:
        cost = None if plan.best.cost.usd is None else cost_text(plan.best.cost)
        took, cost = (offer.duration, offer.cost) if offer else (format_seconds(time.total_seconds), cost)
        run = f", {took}{f' and {cost}' if cost else ''} for the run{', its start included' if offer else ''}"
    used = f"{format_gib(memory.peak_bytes)} (at most {format_gib(memory.peak_high_bytes)}) of "
    chance = "" if plan.chance is None else f"; it fits {plan.chance.words}"
    speed = f"{format_seconds(time.step_seconds)} a step, {format_count(time.tokens_per_second)} tokens/s"
    return (
        f"{'forecast only' if plan.best.not_trained else 'fits'}: {named(execution.layout.strategy, execution.layout)}"
        f"{offload}{run}, {used}{format_gib(memory.capacity_bytes)}; {speed}, MFU {100 * time.mfu:.0f} %{chance}"
    )


def cost_text(cost: Cost) -> str:
    """The price of the run, else of an hour, else a dash."""
    least = "from " * cost.at_least
    if cost.usd is not None:
        return least + format_dollars(cost.usd)
    return f"{least}{format_dollars(cost.usd_per_hour)}/h" if cost.usd_per_hour is not None else "-"
