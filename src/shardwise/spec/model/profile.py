"""What blocks of a model were measured to keep and do, to forecast code that no rule knows."""

from dataclasses import dataclass
from typing import Any

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
    """

    saved: Amount
    forward: Amount
    backward: tuple[Moment, ...]
    flops: Amount
    flops_backward: Amount
    moved: Amount
    moved_backward: Amount
    operators: float


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


def alike_from(longest: int, config: dict[str, Any]) -> int:
    """The fewest tokens of rows that are measured as rows of `longest` are, of a config.json that
    states its windows: no longer than is measured, but beyond the same windows."""
    windows = [config.get("text_config", config).get(key) for key in WINDOWS]
    beyond = [window + 1 for window in windows if type(window) is int and window < longest]
    return min(longest, max(LONGEST_MEASURED, *beyond, 0))
