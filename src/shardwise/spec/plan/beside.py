"""What a plan says beside its candidates: run, changes, disk, chance, needs of another trainer."""

from dataclasses import dataclass, field
from typing import Any, Literal

from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Precision
from shardwise.units import format_bytes, format_gib


@dataclass(frozen=True, kw_only=True)
class RunForecast:
    """The whole run.

    Attributes:
        rows_from: `stated` (data.num_rows), `counted` (by preparation), `sampled` (counted lines,
            lengths of some) or `max_steps`, which needs no rows; None where nothing is known.
        num_rows: to train on; None where they are not known.
        num_steps, seconds, usd: None where they are not known.
        sentence: all of it, or what to say for it to be known.
    """

    rows_from: Literal["stated", "counted", "sampled", "max_steps"] | None
    num_rows: int | None
    num_steps: int | None
    seconds: float | None
    usd: float | None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class PlannedChange:
    """A job with one change, planned.

    Attributes:
        name: the change in words.
        sets: the keys that it sets, as after `--set`: {"train.optimizer": "adamw_8bit"}.
        hardware: what this is planned on; all of what the job names, where the change is another.
        written: the layout's degrees.
        offload: of the chosen execution, as `micro_batch_size` and `gradient_checkpointing` are.
        at_least: costs are at the lowest offer, a floor.
        drawback: what is lost; None where nothing is.
        reason: why nothing fits, where nothing does: figures are None then.
        sentence: what it takes beside the plan, with its drawback.
    """

    name: str
    sets: dict[str, Any] = field(default_factory=dict[str, Any])
    hardware: str
    fits: bool
    strategy: str | None = None
    written: str | None = None
    micro_batch_size: int | None = None
    gradient_checkpointing: str | None = None
    offload: str | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    total_seconds: float | None = None
    usd: float | None = None
    usd_per_hour: float | None = None
    at_least: bool = False
    peak_bytes: int | None = None
    capacity_bytes: int | None = None
    drawback: str | None = None
    reason: str | None = None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes that a run writes.

    Attributes:
        checkpoint_bytes: of one checkpoint.
        checkpoints_bytes: of those that lie there at once: one more than `save_total_limit`, for an
            old one goes when the new one is whole; fewer where fewer are saved. Where the number of
            steps is not known, as if many were.
        merged_bytes: of `merged/`, which `shardwise merge` writes; 0 where there is nothing to
            merge.
        data_cache_bytes: of the prepared rows, in the cache; None where their number is not known.
        total_bytes: the most that lies in output_dir at once, without `merged/`.
    """

    checkpoint_bytes: int
    checkpoints_bytes: int
    final_bytes: int
    merged_bytes: int
    data_cache_bytes: int | None
    total_bytes: int

    @property
    def parts(self) -> str:
        """What lies in output_dir, in words."""
        count = self.checkpoints_bytes // self.checkpoint_bytes
        final = f"final/ of {format_bytes(self.final_bytes)}"
        if not count:
            return final
        return f"{count} checkpoint{'s' if count > 1 else ''} of {format_bytes(self.checkpoint_bytes)} and {final}"


def saved_type(job: Job, *, storage: Any, precision: Precision) -> Any:
    """The type of weights in `final/`: as stated, else the source's, of adapters the trained."""
    if job.train.save_dtype != "auto":
        return job.train.save_dtype
    if job.adapters is None:
        return storage
    return "bfloat16" if precision == "bf16" else "float32"


#: From so many in 100 on, in a word.
_WORDS = ((95, "surely"), (80, "likely"), (50, "maybe"), (0, "hardly"))


@dataclass(frozen=True, kw_only=True)
class Chance:
    """That the chosen candidate fits.

    Attributes:
        in_100: from 1 to 99.
        group: whose errors these are: `this trainer`, `other stacks`, perhaps of a kind of layout.
        rows: measured runs of that group, `sources` of how many sources.
        narrowed_by: the measurement that would narrow it most.
        screen_bytes: what it leaves for a screen that the card may drive.
    """

    in_100: int
    group: str
    rows: int
    sources: int
    narrowed_by: str
    screen_bytes: int = 0

    @property
    def word(self) -> str:
        """Of the number."""
        return next(word for least, word in _WORDS if self.in_100 >= least)

    @property
    def words(self) -> str:
        """It in a word and as a number; with the screen, where that has much to do with it."""
        at_a_desk = " with a screen at the card" * (bool(self.screen_bytes) and self.in_100 < _WORDS[0][0])
        return f"{self.word} ({self.in_100} in 100{at_a_desk})"

    @property
    def sentence(self) -> str:
        """Where the number comes from."""
        beside = f", with {format_gib(self.screen_bytes)} for a screen, if the card drives one"
        runs = f"{self.rows} measured runs ({self.group}){beside * bool(self.screen_bytes)}"
        return f"the chance is from {runs}; what would narrow it most: {self.narrowed_by}"


@dataclass(frozen=True, kw_only=True)
class OnStack:
    """Memory per GPU of the chosen execution in another trainer.

    Attributes:
        target: as `export --to` names it; `version`: that this holds for.
        peak_bytes: with what lies outside the allocator; `peak_high_bytes`: the upper end.
        terms: what is other than in this trainer -> the bytes that the peak has for it.
        setting: what of its settings takes these away; empty where none does.
        checked: how this is known: measured steps of toys, or published rows.
        source: the code that it was read from.
    """

    target: str
    version: str
    peak_bytes: int
    peak_high_bytes: int
    capacity_bytes: int
    peak_instant: str
    terms: dict[str, int]
    setting: str
    checked: str
    source: str

    @property
    def fits(self) -> bool:
        """Whether the upper end does."""
        return self.peak_high_bytes <= self.capacity_bytes

    @property
    def sentence(self) -> str:
        """For people: what it needs, and for what."""
        parts = [f"{name} take {format_gib(count)}" for name, count in self.terms.items()]
        first = next(iter(self.terms), "").startswith(("logits", "AdamW"))
        goes = f", {'the first of ' * (len(parts) > 1)}which goes with {self.setting}" if self.setting and first else ""
        why = f"; {' and '.join(parts)}{goes}" if parts else ""
        return (
            f"for {self.target} {self.version} ({self.checked}): {format_gib(self.peak_bytes)}, at most "
            f"{format_gib(self.peak_high_bytes)}{why}; what is below is of this trainer"
        )
