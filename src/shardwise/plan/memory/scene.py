"""What is alive beside an instant: a micro-batch, and others in flight. All bytes are affine in its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from shardwise.plan.memory.parts import Part
from shardwise.plan.memory.persistent import Holding
from shardwise.plan.memory.work import Work
from shardwise.spec.layout import Layout, Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """Micro-batches whose activations a rank has at once.

    Attributes:
        pairs: (stage, micro-batch) pairs, the one at work among them.
        heads: those of them that are of the last stage.
        gradients: all gradients exist already, from an earlier micro-batch.
    """

    pairs: int = 1
    heads: int = 1
    gradients: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What an instant is evaluated for.

    Attributes:
        tokens: of a micro-batch, on one rank.
        head_tokens: positions whose logits are alive together.
        chunks: the head runs over several chunks of the positions.
        whole: all gradients exist already.
        fills: others are in flight, so that kept gathered weights outlive one backward.
    """

    work: Work
    holding: Holding
    flight: Flight
    tokens: float
    head_tokens: float
    chunks: bool
    whole: bool
    fills: bool = False

    @property
    def part(self) -> Part:
        """What of the model is here."""
        return self.holding.part


def flights(layout: Layout, *, pp: int, num_micro_batches: int) -> Iterator[Flight]:
    """The fullest moments of a pipeline rank: most in flight, and if that is before any backward, the one after it.

    More GPUs or a smaller micro-batch never need more memory (`tests/unit/plan/test_monotone.py`), except: more stages
    of 1f1b, interleaved and zero_bubble keep more micro-batches in flight; rounds of an interleaved rank are longer
    where ranks do not divide the micro-batches; the first accumulation puts gradients beside a forward.
    """
    most = pairs_in_flight(layout.schedule, num_ranks=layout.pp, rank=pp, num_micro_batches=num_micro_batches)
    heads = min(most, _heads(layout.schedule, num_micro_batches, layout.pp))
    again = most < num_micro_batches * len(layout.stages_of(pp))
    yield Flight(pairs=most, heads=heads, gradients=again)
    if not again and most > 1:
        yield Flight(pairs=most - 1, heads=max(1, heads - 1), gradients=True)


def _heads(schedule: Schedule, micros: int, ranks: int) -> int:
    """Micro-batches of the last stage alive at once; zero_bubble keeps them until weight gradients are done."""
    if schedule == "interleaved":
        return max(1, longest_round(micros, ranks) - ranks + 1)
    return {"gpipe": micros, "zero_bubble": min(micros, ranks)}.get(schedule, 1)


def longest_round(micros: int, ranks: int) -> int:
    """Micro-batches go through an interleaved rank's stages in rounds of about as many as there are ranks."""
    return -(-micros // max(1, micros // ranks))


@lru_cache(maxsize=65536)
def pairs_in_flight(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> int:
    """What `spec.schedule.in_flight` counts in a schedule's order, without going through it."""
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
