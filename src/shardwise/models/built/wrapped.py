"""What lies beside the language model of a model of more than text; the shape of one by the rules of its family."""

from dataclasses import replace
from typing import Any, cast

from torch import nn

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import ModelError
from shardwise.models.anatomy import Anatomy
from shardwise.models.wrapper import find_inside, leave_others
from shardwise.spec.model.shape import ModelShape, Wrapper


def leave_language_model(whole: nn.Module) -> Wrapper | None:
    """Takes all else out of a whole model, in place, and counts it; None where it is a language model alone."""
    inside, every = find_inside(whole), _count(whole)
    if inside is None:
        return None
    leave_others(whole, inside)
    return Wrapper(family=cast(Any, whole).config.model_type, frozen_parameters=every - _count(whole))


def known_shape(anatomy: Anatomy, data: dict[str, Any], *, dtype: str) -> ModelShape | None:
    """The shape of a language model by the rules of its family (`data`: its configuration). None where there are none,
    or where they do not count what was built."""
    if data["model_type"] not in FAMILIES:
        return None
    stated = {**data, "tie_word_embeddings": anatomy.tied, "dtype": dtype}
    try:
        shape = shape_from_data(stated, file="text_config")
    except ModelError:  # of something that its rules do not have
        return None
    if shape.num_parameters != _count(anatomy.model):
        return None
    names = {id(module): name for name, module in anatomy.model.named_modules()}
    found = shape.names.inside(anatomy.backbone_name, head=names[id(anatomy.head)])
    return replace(shape, names=found) if found.blocks == names[id(anatomy.blocks)] else None


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
