"""Timeline: who computes, talks and waits during one optimizer step, as the planner lays it out."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward", "loss", "backward", "optimizer", "wait", "exchange", "gather", "reduce", "send"]
Stream = Literal["compute", "links"]

#: What runs on the GPU's own units; all else travels.
COMPUTING: frozenset[Kind] = frozenset({"forward", "loss", "backward", "optimizer"})

#: What each kind of work is called wherever it is drawn, in the order in which a legend names them.
KIND_WORDS: dict[Kind, str] = {
    "forward": "forward",
    "loss": "head and loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "wait": "waiting for messages or for the host to launch work",
    "exchange": "exchanging slices",
    "gather": "gathering weights",
    "reduce": "reducing gradients",
    "send": "sending to another stage",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineSpan:
    """One stretch of a rank's time, in seconds from the beginning of the step. `rank`: the lowest
    of the ranks that do the same at the same time; `stream`: `links` runs beside `compute`, where
    `exchange` and `wait` alone stop computing; `name`: such as `backward of layer 3`."""

    rank: int
    stream: Stream
    kind: Kind
    name: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Ranks that do the same at once. `computing`: the share of the step in which they compute."""

    ranks: tuple[int, ...]
    computing: float

    @property
    def rank(self) -> int:
        """The one that spans name."""
        return self.ranks[0]

    @property
    def name(self) -> str:
        """`GPU 0`, or `GPU 0-3`."""
        return f"GPU {self.rank}" if len(self.ranks) == 1 else f"GPU {self.rank}-{self.ranks[-1]}"


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One optimizer step.

    Attributes:
        strategy: as in the plan: `fsdp`, `mp`.
        seconds: length of what is laid out.
        micro_batches: of the step.
        drawn_micro_batches: how many of them are laid out: enough to see how they follow each
            other.
    """

    strategy: str
    seconds: float
    micro_batches: int
    drawn_micro_batches: int
    lanes: tuple[Lane, ...]
    spans: tuple[TimelineSpan, ...]

    def of(self, lane: Lane, stream: Stream) -> tuple[TimelineSpan, ...]:
        """The spans of one lane on one stream, in order of time."""
        mine = (span for span in self.spans if span.rank == lane.rank and span.stream == stream)
        return tuple(sorted(mine, key=lambda span: span.start))
