"""Buffers in a model's files, such as routers' correction biases: read and saved, never trained.

Every rank holds those of its blocks whole, in the type in which transformers builds them; files
keep the type they had.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shardwise.errors import ModelError
from shardwise.models.keys import without_wrappers
from shardwise.models.weights import Weights, bounds_of


def saved_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Name in the base model -> buffer, of those that `save_pretrained` writes."""
    found: dict[str, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        for attribute, buffer in module._buffers.items():
            if buffer is not None and attribute not in module._non_persistent_buffers_set:
                found[without_wrappers(f"{prefix}.{attribute}")] = buffer
    return found


def stored_types(types: Mapping[str, torch.dtype], model: nn.Module, weights: Weights) -> dict[str, torch.dtype]:
    """Name -> type in files, of buffers by their own types: the folder's, where it has them."""
    stored = _stored(types, model, weights)
    return dict(types) | {name: weights.read(key, offsets=(), lengths=()).dtype for name, key in stored.items()}


def fill_buffers(model: nn.Module, weights: Weights) -> dict[str, torch.Tensor]:
    """Gives buffers the folder's values, whole; those it lacks keep their built values, as in
    transformers. Returns name -> `bounds_of` what was read. Raises ModelError: another shape."""
    bounds: dict[str, torch.Tensor] = {}
    buffers = saved_buffers(model)
    for name, key in _stored(buffers, model, weights).items():
        buffer, shape = buffers[name], weights.shape(key)
        if shape != tuple(buffer.shape):
            message = f"{weights.key(key)} has the shape {shape}; config.json asks for {tuple(buffer.shape)}"
            raise ModelError.at(weights.where(key), message)
        value = weights.read(key, offsets=(), lengths=())
        buffer.copy_(value)
        if buffer.is_floating_point() and buffer.numel():
            bounds[key] = bounds_of(value)
    return bounds


def names_in_files(names: Mapping[str, Any], model: nn.Module) -> set[str]:
    """What the folder may call buffers: their names, with or without the backbone's prefix."""
    prefix = _prefix(model)
    return {called for name in names for called in (name, name.removeprefix(prefix))}


def _stored(names: Mapping[str, Any], model: nn.Module, weights: Weights) -> dict[str, str]:
    stored, prefix = weights.names, _prefix(model)
    found = {name: next((n for n in (name, name.removeprefix(prefix)) if n in stored), None) for name in names}
    return {name: key for name, key in found.items() if key is not None}


def _prefix(model: nn.Module) -> str:
    return f"{getattr(model, 'base_model_prefix', '')}."
