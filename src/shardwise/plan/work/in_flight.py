"""Micro-batches that a rank has in flight at its schedule's fullest moments, and one at work."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from shardwise.plan.work.parts import RankPart
from shardwise.plan.work.persistent import Holding
from shardwise.plan.work.work import Work
from shardwise.spec.layout.axes import Layout, Schedule

#: Bytes that are alive at an instant, by part (`spec.plan.forecast.PARTS`).
Alive = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """Micro-batches whose activations a rank has at once: (stage, micro-batch) pairs, those of the
    last stage, and whether all gradients exist; `forwards`: one may be in forward, whose order
    FSDP2 prefetches by until a backward is done. `cut`: pairs with gradients of inputs only."""

    pairs: int = 1
    heads: int = 1
    gradients: bool = False
    forwards: bool = True
    cut: int = 0


@dataclass(frozen=True)
class Scene:
    """A micro-batch on the ranks of a holding, with others in flight, for one instant. `beside`:
    the work of the others, if their rows have another length. `turn`: whose gradients, if only a
    step's last micro-batch reduces them (`costs/fsdp.py`); None if all do."""

    work: Work
    holding: Holding
    flight: Flight
    beside: Work | None = None
    turn: Literal["first", "between", "last"] | None = None

    @property
    def part(self) -> RankPart:
        """What of the model is here."""
        return self.holding.part

    @cached_property
    def whole(self) -> bool:
        """Whether all gradients exist already."""
        return self.work.replicated or self.flight.gradients


def flights(layout: Layout, *, pp: int, num_micro_batches: int) -> Iterator[Flight]:
    """The fullest moments of a pipeline rank: most in flight, and if before any backward, the one
    after it: first gradients stand beside another backward, and all forwards are done."""
    most = pairs_in_flight(layout.schedule, num_ranks=layout.pp, rank=pp, num_micro_batches=num_micro_batches)
    heads = min(most, _heads(layout.schedule, num_micro_batches, layout.pp))
    again = most < num_micro_batches * len(layout.stages_of(pp))
    cut = min(num_micro_batches, pp + 1) if layout.schedule == "zero_bubble" and pp else 0
    yield Flight(pairs=most, heads=heads, gradients=again, cut=cut)
    if not again and most > 1:
        yield Flight(pairs=most - 1, heads=max(1, heads - 1), gradients=True, forwards=False, cut=cut)


def _heads(schedule: Schedule, micros: int, ranks: int) -> int:
    """Last-stage micro-batches alive at once; zero_bubble keeps them until weight gradients."""
    if schedule == "interleaved":
        return max(1, longest_round(micros, ranks) - ranks + 1)
    return {"gpipe": micros, "zero_bubble": min(micros, ranks)}.get(schedule, 1)


def longest_round(micros: int, ranks: int) -> int:
    """Micro-batches go through an interleaved rank's stages in rounds of about the rank count."""
    return -(-micros // max(1, micros // ranks))


@lru_cache(maxsize=65536)
def pairs_in_flight(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> int:
    """The most (stage, micro-batch) pairs of a rank whose saved activations are alive at once."""
    micros = num_micro_batches
    if num_ranks == 1:
        return 1
    match schedule:
        case "sequential":
            return 1
        case "gpipe":
            return micros
        case "1f1b":
            return min(micros, num_ranks - rank)
        case "zero_bubble":
            # Of the weights' gradients, as many wait as there are ranks before this one.
            return min(micros, num_ranks)
        case "interleaved":
            return min(2 * micros, 2 * (num_ranks - rank - 1) + longest_round(micros, num_ranks) + 1)
