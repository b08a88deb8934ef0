"""Whether tensor parallelism can slice the blocks of a model that was built to read its shape.

transformers' plan must be of its blocks, and each part of them must be given the stream and give one like it.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy, tensor_plan
from shardwise.models.built.watch import watch, watchable
from shardwise.models.stage import final_norm

#: Families whose embedding is scaled as it looks up, and which train sliced as one process does.
_SCALED = ("vaultgemma",)


def why_whole(anatomy: Anatomy) -> str:
    """Why tensor parallelism does not slice a model that was not seen to be `deals_alike`."""
    try:
        tensor_plan(anatomy.backbone.config)
    except UnsupportedError:
        return "transformers has no tensor parallel plan of its blocks"
    return "transformers' plan does not slice its matrices by what each was seen to read, or not all of them"


def deals_alike(anatomy: Anatomy) -> bool:
    """Whether tensor parallelism can deal the experts of a model, and run the rest of its blocks
    sliced or whole: each part that has matrices is given the stream [batch, length, width] and
    gives one like it."""
    try:
        tensor_plan(anatomy.backbone.config)
    except UnsupportedError:
        return False
    alike: list[bool] = []

    def compare(_module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(given, torch.Tensor) and isinstance(first, torch.Tensor):
            alike.append(given.ndim == 3 and given.shape.numel() == first.shape.numel())

    parts = [part for block in anatomy.blocks for part in (block, *block.children())]
    matrices = [part for part in parts if any(parameter.ndim > 1 for parameter in part.parameters())]
    hooks = [part.register_forward_hook(compare, with_kwargs=True) for part in matrices]
    with watchable(), suppress(Exception):  # whatever a model's code raises where there are no numbers
        watch(anatomy, packed=False)
    for hook in hooks:
        hook.remove()
    return len(alike) == len(matrices) > 0 and all(alike) and _is_plain(anatomy)


def _is_plain(anatomy: Anatomy) -> bool:
    """Whether embedding and head are single matrices, and a norm stands behind the blocks."""
    scaled = anatomy.backbone.config.model_type in _SCALED  # pyright: ignore
    plain = (type(anatomy.embedding) is nn.Embedding or scaled) and isinstance(anatomy.head, nn.Linear)
    inside = any(hasattr(block, "experts") for block in anatomy.blocks)
    width: int = anatomy.backbone.config.hidden_size  # pyright: ignore
    return plain and not inside and final_norm(anatomy, width=width) is not None
