"""What a forward was seen to do: filled by `watch.py`, read by `ends.py` and `generic.py`."""

from collections import Counter
from dataclasses import dataclass, field

import torch


@dataclass(kw_only=True, eq=False)
class MaskCall:
    """A mask that a model asked transformers for; `by_positions`: it separates packed documents by their positions."""

    causal: bool
    by_positions: bool


@dataclass(kw_only=True, eq=False)
class AttentionCall:
    """One call of transformers' attention interface. `mask`: None where the model handed in one that it did not get
    from transformers; `words`: names of what it was told beside queries, keys, values and the mask."""

    mask: MaskCall | None
    words: frozenset[str]


@dataclass(kw_only=True, eq=False)
class BlockCall:
    """One call of a decoder block. `given`: the residual stream; `others`: the tensors that it was given beside it;
    `ops`: how often each operator ran on what was made of tokens."""

    name: str
    given: torch.Tensor
    made: torch.Tensor | None = None
    attention: list[AttentionCall] = field(default_factory=list[AttentionCall])
    ops: Counter[str] = field(default_factory=Counter[str])
    others: list[torch.Tensor] = field(default_factory=list[torch.Tensor])


@dataclass(kw_only=True, eq=False)
class Seen:
    """One forward of a causal language model.

    Attributes:
        of_tokens: ids of tensors that were made of tokens or by a matrix, and not of positions alone.
        ran_outside: name of each leaf module that ran outside the blocks -> how many blocks had run before it.
        returned: how many values each block returned in a tuple; 0: one tensor.
    """

    blocks: list[BlockCall] = field(default_factory=list[BlockCall])
    of_tokens: set[int] = field(default_factory=set[int])
    ran_outside: dict[str, int] = field(default_factory=dict[str, int])
    returned: int = 0
