"""A pipeline stage: a Hugging Face model without what other stages hold. Names and indices stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy

#: What some backbones do to embeddings before the first block, and the value that leaves alone the hidden states that
#: stages behind the first are given in their place.
_BEFORE_BLOCKS: dict[str, float] = {"embedding_multiplier": 1.0, "embedding_dropout": 0.0}


@dataclass(frozen=True, kw_only=True)
class StagePlace:
    """Which part of a model a stage is, counted from 0, and which blocks it holds."""

    index: int
    count: int
    blocks: range

    @property
    def is_first(self) -> bool:
        """Whether it holds the embedding and takes token ids."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it holds the final norm and the head and makes the loss."""
        return self.index == self.count - 1


class PassOn(nn.Module):
    """What stands where another stage's block or norm was: gives its first argument back."""

    def forward(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        """The residual stream, as it came."""
        return hidden_states


def keep_stage(anatomy: Anatomy, place: StagePlace) -> None:
    """Removes what a stage does not hold, in place on the meta device; with tied weights the last keeps the embedding.
    Raises UnsupportedError: transformers has no pipeline plan for the model, or one of another form."""
    embedding, norm = outer_modules(anatomy)
    for index in range(len(anatomy.blocks)):
        if index not in place.blocks:
            anatomy.blocks[index] = PassOn()
    if not place.is_first and not (place.is_last and anatomy.tied):
        setattr(anatomy.backbone, embedding, None)
    if not place.is_first:
        for name, nothing in _BEFORE_BLOCKS.items():
            if hasattr(anatomy.backbone, name):
                setattr(anatomy.backbone, name, nothing)
    if not place.is_last:
        setattr(anatomy.backbone, norm, PassOn())
        for holder in anatomy.model.modules():
            for name in [name for name, module in holder.named_children() if module is anatomy.head]:
                setattr(holder, name, None)


def outer_modules(anatomy: Anatomy) -> tuple[str, str]:
    """Attributes of the backbone that hold embedding and final norm, by transformers' own pipeline plan of the model.
    Raises UnsupportedError: there is no plan of the form embedding, blocks, norm."""
    config: Any = anatomy.backbone.config
    plan: dict[str, Any] = getattr(config, "base_model_pp_plan", None) or {}
    names = list(plan)
    if len(names) != 3 or getattr(anatomy.backbone, names[1], None) is not anatomy.blocks:
        raise UnsupportedError(
            f"{config.model_type} has no pipeline plan of embedding, blocks and norm in transformers; use fsdp"
        )
    return names[0], names[2]
