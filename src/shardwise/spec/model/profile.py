"""What blocks of a model were measured to keep and do, to forecast code that no rule knows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from shardwise.spec.layout.execution import Attention, Precision, Recompute

#: The longest row that is measured: code that loops over tokens takes its time.
LONGEST_MEASURED = 512
WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size")


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Bytes or FLOPs: `once`, and for each row the sum of `row` times (1, length, length**2)."""

    once: float
    row: tuple[float, float, float]

    def per_token(self, length: float) -> float:
        """Of a row of `length` tokens, for each of these."""
        constant, linear, square = self.row
        return constant / length + linear + square * length

    def times(self, share: float) -> Self:
        """A share of what grows with rows."""
        constant, linear, square = self.row
        return replace(self, row=(share * constant, share * linear, share * square))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a block's backward. `alive`: bytes above those before the block's forward;
    `gradients`: elements of its trained weights with gradients there; `fresh`: of the largest."""

    alive: Amount
    gradients: int
    fresh: int


@dataclass(frozen=True, kw_only=True)
class BlockProfile:
    """One block of a kind; bytes of activations, without weights, their copies and gradients.

    Attributes:
        saved: what it keeps until its backward, with what it gives and without what it is given
            where it lets go of it.
        forward: the most that is alive in its forward, above what was alive before.
        backward: moments of its backward that may be the fullest.
        flops, flops_backward: of products, attention and convolutions; a backward's with what is
            computed again.
        moved, moved_backward: bytes that all other operators read and write.
        operators: how many a forward runs.
        whole, whole_work: of what it keeps, and of its FLOPs, the share that tensor parallelism
            leaves to each rank.
    """

    saved: Amount
    forward: Amount
    backward: tuple[Moment, ...]
    flops: Amount
    flops_backward: Amount
    moved: Amount
    moved_backward: Amount
    operators: float
    whole: float = 1.0
    whole_work: float = 1.0

    def on_rank(self, tp: int, *, held: float, stream: float | None) -> Self:
        """Of one of `tp` ranks, with a share `held` of its weights; `stream`: the share of what it
        keeps, where that is the residual stream."""
        kept, work = (whole + (1 - whole) / tp for whole in (self.whole, self.whole_work))
        moments = (replace(one, alive=one.alive.times(kept)) for one in self.backward)
        amounts = {name: getattr(self, name).times(work) for name in ("flops", "flops_backward")}
        amounts |= {name: getattr(self, name).times(kept) for name in ("moved", "moved_backward", "forward")}
        return replace(
            self,
            **amounts,
            saved=self.saved.times(kept if stream is None else stream),
            backward=tuple(
                replace(one, gradients=round(held * one.gradients), fresh=round(held * one.fresh)) for one in moments
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """Profiles of all kinds of blocks, in the order of `ModelShape.kinds`, under one recompute.

    Attributes:
        sharded: weights were gathered in the compute type.
        shared: bytes that all blocks share (masks, rotary tables), beside the residual stream.
        final: what lies between the last block and the head keeps, without the head's input.
        code: of which code it is: `torch`, or the packages with kernels that ran.
    """

    precision: Precision
    attention: Attention
    recompute: Recompute
    sharded: bool
    shared: Amount
    final: Amount
    blocks: tuple[BlockProfile, ...]
    code: str = "torch"

    def on_rank(self, tp: int, *, held: Sequence[float], stream: float) -> Self:
        """Of one of `tp` ranks. `held`: its share of weights, for each kind of block; `stream`: of
        the residual stream."""
        kept = stream if self.recompute == "full" else None
        blocks = (one.on_rank(tp, held=of, stream=kept) for one, of in zip(self.blocks, held, strict=True))
        return replace(self, blocks=tuple(blocks), final=self.final.times(stream))


def alike_from(longest: int, config: dict[str, Any]) -> int:
    """The fewest tokens of rows that are measured as rows of `longest` are, of a config.json that
    states its windows: no longer than is measured, but beyond the same windows."""
    windows = [config.get("text_config", config).get(key) for key in WINDOWS]
    beyond = [window + 1 for window in windows if type(window) is int and window < longest]
    return min(longest, max(LONGEST_MEASURED, *beyond, 0))
