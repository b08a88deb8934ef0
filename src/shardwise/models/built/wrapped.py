"""The shape of the language model inside a model of more than text, and the size of what lies beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from torch import nn

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families.known import FAMILIES
from shardwise.models.anatomy import find_anatomy
from shardwise.models.wrapper import find_inside, leave_others, text_config
from shardwise.spec.model.shape import ModelShape, Wrapper


def leave_language_model(whole: nn.Module) -> Wrapper | None:
    """Takes all else out of a whole model, in place, and counts it; None where it is a language model alone."""
    inside, every = find_inside(whole), _count(whole)
    if inside is None:
        return None
    leave_others(whole, inside)
    config: Any = whole.config
    return Wrapper(family=config.model_type, frozen_parameters=every - _count(whole))


def known_shape(whole: nn.Module, wrapper: Wrapper, *, dtype: str, file: str) -> ModelShape | None:
    """The shape by the rules of a family, of a wrapper whose language model is left; None where they count otherwise, or
    there are none."""
    config, inside, anatomy = text_config(whole.config), find_inside(whole), find_anatomy(whole)
    if inside is None or config.model_type not in FAMILIES:
        return None
    stated = {**json.loads(config.to_json_string()), "tie_word_embeddings": anatomy.tied, "dtype": dtype}
    shape = shape_from_data(stated, file=f"{file}, text_config")
    if shape.num_parameters != _count(whole):
        return None
    return replace(shape, names=shape.names.inside(inside.backbone, head=inside.head), wrapper=wrapper)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
