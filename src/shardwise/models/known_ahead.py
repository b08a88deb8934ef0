"""What transformers would wait for the device to learn: whether rows are packed, or too long."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn


def state_packed(packed: bool, *, told: Callable[..., Any] | None = None) -> None:
    """Says for this process whether rows hold several documents, whose positions restart; else
    masks are causal. transformers looks at the positions in every forward. `told`: makes masks in
    its place, where this rank has parts of rows, of what tells documents, and the positions."""
    from transformers import masking_utils

    find: Any = documents_of if told is None else partial(told, documents_of)
    masking_utils.find_packed_sequence_indices = find if packed else lambda _positions: None


@contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Iterator[None]:
    """Within it attributes (owner, name, value) of others' code have other values."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for place in places:
            setattr(*place)
        yield
    finally:
        for place in before:
            setattr(*place)


def rows_unpacked() -> AbstractContextManager[None]:
    """Says within it alone that each row is one document, in a process that others use too."""
    from transformers import masking_utils

    return replaced((masking_utils, "find_packed_sequence_indices", lambda _positions: None))


def documents_of(position_ids: torch.Tensor) -> torch.Tensor:
    """The document of each token in its row, from 0, by positions [batch, length] that restart."""
    begins = position_ids[:, 1:] != position_ids[:, :-1] + 1
    return torch.nn.functional.pad(begins.cumsum(-1), (1, 0))


def hold_rotations(roots: Iterable[nn.Module]) -> None:
    """Keeps rotary frequencies that follow the longest row (`catalog/stated.py` refuses longer)."""
    for module in (module for root in roots for module in root.modules()):
        kind = getattr(module, "rope_type", None)
        if kind is not None:
            vars(module)["rope_type"] = dict.fromkeys(kind, "default") if isinstance(kind, dict) else "default"
