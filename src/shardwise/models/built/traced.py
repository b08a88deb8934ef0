"""What a forward was seen to do: filled by `watch.py`, read by `shape.py`."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

#: From which landmark's output (a module's name, or one of these) a tensor was made.
STREAM, TOKENS, POSITIONS = "<stream>", "<tokens>", "<positions>"
Origins = frozenset[str]


def operator_name(func: Any, words: dict[str, Any] | None) -> str:
    """What an operator is called in aten, with how it approximates where it does."""
    name, approximately = func.overloadpacket.__name__, (words or {}).get("approximate", "none")
    return name if approximately == "none" else f"{name}({approximately})"


@dataclass(kw_only=True, eq=False)
class Op:
    """One operator call: when, its name in aten, and what went in and came out."""

    index: int
    name: str
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


@dataclass(kw_only=True, eq=False)
class Call:
    """One call of a module that holds parameters, or normalises: a landmark, with its first input and its output."""

    name: str
    module: nn.Module
    given: torch.Tensor
    made: torch.Tensor
    ops: list[Op] = field(default_factory=list[Op])


@dataclass(kw_only=True, eq=False)
class MaskCall:
    """A mask that a model asked transformers for; `by_positions`: it separates packed documents by their positions."""

    causal: bool
    window: int | None
    by_positions: bool


@dataclass(kw_only=True, eq=False)
class AttentionCall:
    """One call of transformers' attention interface. `query`, `key`, `value`: [batch, heads, length, width of a head];
    `mask`: None where the model handed in one that it did not get from transformers; `words`: the other arguments that
    were not None, by name."""

    name: str
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    made: torch.Tensor
    causal: bool
    mask: MaskCall | None
    words: dict[str, Any]


@dataclass(kw_only=True, eq=False)
class BlockCall:
    """One call of a decoder block. `ops`: operators inside the block and outside the landmarks; `others`: the tensors
    that it was given beside the residual stream."""

    name: str
    given: torch.Tensor
    made: torch.Tensor | None = None
    made_of: Origins = frozenset()
    calls: list[Call] = field(default_factory=list[Call])
    attention: list[AttentionCall] = field(default_factory=list[AttentionCall])
    ops: list[Op] = field(default_factory=list[Op])
    others: list[torch.Tensor] = field(default_factory=list[torch.Tensor])


@dataclass(kw_only=True, eq=False)
class Seen:
    """One forward of a causal language model.

    Attributes:
        handed: name of a module around landmarks -> the hidden states that it was given, first or by name.
        bare: names of parameters that an operator read outside of every landmark.
        producers: id of a tensor -> the operator that made it.
        origins: id of a tensor -> the landmarks that it was made from.
        landmarks: ids of tensors that landmarks made.
        ran_outside: name of each leaf module that ran outside the blocks -> how many blocks had run before it.
        returned: how many values each block returned in a tuple; 0: one tensor.
    """

    blocks: list[BlockCall] = field(default_factory=list[BlockCall])
    outside: list[Call] = field(default_factory=list[Call])
    logits: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    handed: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    bare: list[str] = field(default_factory=list[str])
    producers: dict[int, Op] = field(default_factory=dict[int, Op])
    origins: dict[int, Origins] = field(default_factory=dict[int, Origins])
    landmarks: set[int] = field(default_factory=set[int])
    ran_outside: dict[str, int] = field(default_factory=dict[str, int])
    returned: int = 0

    def origin(self, tensor: torch.Tensor) -> Origins:
        """The landmarks that a tensor was made from."""
        return self.origins.get(id(tensor), frozenset())

    def ops_behind(self, tensor: torch.Tensor) -> list[Op]:
        """The operators between the last landmarks and a tensor, in order, without those on positions alone."""
        found: dict[int, Op] = {}
        open_ = [tensor]
        while open_:
            here = open_.pop()
            op = self.producers.get(id(here))
            if id(here) in self.landmarks or op is None or not self.origin(here) - {POSITIONS} or id(op) in found:
                continue
            found[id(op)] = op
            open_ += op.inputs
        return sorted(found.values(), key=lambda op: op.index)
