"""Names of weights in files and in the model, by transformers' own renamings (GPT-NeoX: `embed_out` for `lm_head`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from torch import nn


class Keys:
    """The names of a model's weights, and the keys of files that they are stored under.

    Only renamings are applied: tensors that transformers joins or splits (experts) have no place in the model.

    Attributes:
        names: key of a file -> what the model calls it.
    """

    def __init__(self, model: nn.Module, stored: Iterable[str]) -> None:
        """Finds the names of `stored`, all keys of the folder, for a model before it is spread. Renamings that none
        needed are not undone in `saved`, as in transformers."""
        renamings = _renamings(model)
        self.names = {key: _renamed(key, renamings) for key in stored}
        self._undone = [renaming.reverse_transform() for renaming in reversed(renamings) if renaming.was_used()]

    def saved(self, name: str) -> str:
        """The key that `save_pretrained` writes a weight under, once the folder has been loaded."""
        return _renamed(name, self._undone)


def _renamed(key: str, renamings: Iterable[Any]) -> str:
    return reduce(lambda name, renaming: renaming.rename_source_key(name)[0], renamings, key)


def _renamings(model: nn.Module) -> list[Any]:
    """What `from_pretrained` applies to each key of a folder, in its order."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ImportError:
        return []
    transforms: list[Any] = get_model_conversion_mapping(model)  # pyright: ignore[reportArgumentType]
    return [transform for transform in transforms if isinstance(transform, WeightRenaming)]
