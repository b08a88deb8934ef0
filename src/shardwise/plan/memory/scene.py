"""A moment's surroundings: whose memory is looked at, how much is in a micro-batch, and how many of those are alive.

Everything alive at an instant is affine in two numbers, the tokens of a micro-batch and the positions whose logits are
alive together, once the rest of a scene is fixed. Forecasts of many micro-batch sizes use that.
"""

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
    """Micro-batches whose saved activations a rank has at once.

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
        fills: others are in flight, so that kept gathered weights outlive the backward of one.
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
    """The fullest moments of a pipeline rank: most in flight, and, if that is before any backward, the one after it.

    What a strategy needs falls with its GPUs and with its micro-batch wherever these leave the number in flight alone;
    `tests/unit/plan/test_monotone.py` holds that, and these exceptions, which are the schedules' own:

    - under 1f1b, interleaved and zero_bubble more stages keep more micro-batches in flight (as many as there are
      stages), so that where activations outweigh weights, more stages may need more;
    - an interleaved rank goes through its stages in rounds, which are longer where their number of ranks does not
      divide the forwards of a step: three forwards on two ranks keep more than four do;
    - the first accumulation puts gradients beside a forward, so that half the micro-batch, twice, may need more than
      all of it at once; and a micro-batch whose loss is one chunk keeps it, where a larger one computes chunks anew.
    """
    most = pairs_in_flight(layout.schedule, num_ranks=layout.pp, rank=pp, num_micro_batches=num_micro_batches)
    heads = min(most, _heads(layout.schedule, num_micro_batches, layout.pp))
    again = most < num_micro_batches * len(layout.stages_of(pp))
    yield Flight(pairs=most, heads=heads, gradients=again)
    if not again and most > 1:
        yield Flight(pairs=most - 1, heads=max(1, heads - 1), gradients=True)


def _heads(schedule: Schedule, micros: int, ranks: int) -> int:
    """Micro-batches of the last stage alive at once; a cut backward keeps them until the weights' part is done."""
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
