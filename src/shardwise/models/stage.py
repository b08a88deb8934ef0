"""A pipeline stage: a Hugging Face model without what other stages hold. Names and indices stay."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy

#: What some backbones do to embeddings before the first block, and the value that leaves alone the
#: hidden states that stages behind the first are given in their place.
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


@dataclass(frozen=True, kw_only=True)
class StageEnds:
    """What runs outside the blocks beside embedding and head: names of modules that hold weights.
    `before`, `behind`: what stages behind the first, and before the last, do without; `joins`:
    something changes embeddings before the first block, or hidden states behind the last norm:
    stages then hand their blocks what was sent; `returned`: values of a block's tuple, or 0."""

    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    joins: bool = True
    returned: int = 0


class PassOn(nn.Module):
    """Stands in for another stage's block or norm: returns its first argument, in a tuple as long
    as `returned` says. The block's own attributes (numbers, names) can still be read. Beside this
    stage's blocks it puts in what is `received`, and takes out what is `kept`."""

    def __init__(self, old: nn.Module | None = None, *, returned: int = 0) -> None:
        super().__init__()
        said = {} if old is None else vars(old)
        vars(self).update({name: value for name, value in said.items() if isinstance(value, str | int | float)})
        self._returned = returned
        self.received: torch.Tensor | None = None
        self.kept: list[torch.Tensor] | None = None

    def forward(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
        """The residual stream, as it came."""
        if self.received is not None:
            hidden_states, self.received = self.received, None
        if self.kept is not None:
            self.kept.append(hidden_states)
        return (hidden_states, *[None] * (self._returned - 1)) if self._returned else hidden_states


class Nothing(nn.Module):
    """What stands where another stage's table was: zero, whatever is looked up."""

    def forward(self, given: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        """A zero that is added to anything."""
        return torch.zeros((), device=given.device)


def keep_stage(anatomy: Anatomy, place: StagePlace, ends: StageEnds) -> None:
    """Removes what a stage does not hold, in place; if tied, the last stage keeps the embedding."""
    blocks, backbone = anatomy.blocks, anatomy.backbone
    for index in range(len(blocks)):
        if index not in place.blocks:
            blocks[index] = PassOn(blocks[index], returned=ends.returned)
    if not place.is_first:
        if not (place.is_last and anatomy.tied):
            _replace(anatomy.model, anatomy.embedding, None)
        for name, nothing in _BEFORE_BLOCKS.items():
            if hasattr(backbone, name):
                setattr(backbone, name, nothing)
        for module in map(anatomy.model.get_submodule, ends.before):
            _replace(anatomy.model, module, Nothing() if isinstance(module, nn.Embedding) else PassOn())
        if ends.joins:
            _put_in(backbone, cast(PassOn, blocks[place.blocks.start - 1]))
    if not place.is_last:
        for module in map(anatomy.model.get_submodule, ends.behind):
            _replace(anatomy.model, module, PassOn())
        _replace(anatomy.model, anatomy.head, None)
        if ends.joins:
            _take_out(backbone, cast(PassOn, blocks[place.blocks.stop]))


def _put_in(backbone: nn.Module, last: PassOn) -> None:
    """Makes the last block before a stage's own give what the stage received. The code before the
    blocks gets zeros, which some of it changes in place."""

    def receive(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        received: torch.Tensor = kwargs["inputs_embeds"]
        last.received = received
        return args, {**kwargs, "inputs_embeds": torch.zeros_like(received)}

    backbone.register_forward_pre_hook(receive, with_kwargs=True)


def _take_out(backbone: nn.Module, first: PassOn) -> None:
    """Makes a backbone return what the stage's last block gave."""
    from transformers.modeling_outputs import BaseModelOutput

    first.kept = kept = list[torch.Tensor]()
    backbone.register_forward_hook(lambda *_: BaseModelOutput(last_hidden_state=kept.pop()))  # pyright: ignore


def _replace(model: nn.Module, old: nn.Module, new: nn.Module | None) -> None:
    for holder in list(model.modules()):
        for name in [name for name, module in holder.named_children() if module is old]:
            setattr(holder, name, new)


def planned_ends(anatomy: Anatomy) -> StageEnds:
    """The final norm alone, by a model's transformers pipeline plan. Raises as `outer_modules`."""
    norm = getattr(anatomy.backbone, outer_modules(anatomy)[1])
    names = (name for name, module in anatomy.model.named_modules() if module is norm)
    return StageEnds(behind=(next(names),), joins=False)


def outer_modules(anatomy: Anatomy) -> tuple[str, str]:
    """Attributes of the backbone that hold embedding and final norm, by transformers' pipeline
    plan. Raises UnsupportedError: there is no plan of the form embedding, blocks, norm."""
    config: Any = anatomy.backbone.config
    plan: dict[str, Any] = getattr(config, "base_model_pp_plan", None) or {}
    names = list(plan)
    if len(names) != 3 or getattr(anatomy.backbone, names[1], None) is not anatomy.blocks:
        raise UnsupportedError(
            f"{config.model_type} has no pipeline plan of embedding, blocks and norm in transformers; use fsdp"
        )
    return names[0], names[2]


def final_norm(anatomy: Anatomy, *, width: int) -> nn.Module | None:
    """The norm behind the blocks: of transformers' pipeline plan (OLMo's has no weights), or the
    last child of the block list's parent that has only vectors of the stream's width."""
    try:
        planned = getattr(anatomy.backbone, outer_modules(anatomy)[1])
        return planned if {tuple(p.shape) for p in planned.parameters()} <= {(width,)} else None
    except UnsupportedError:
        around = next(m for m in anatomy.backbone.modules() if anatomy.blocks in set(m.children()))
        children = list(around.children())
        behind = children[children.index(anatomy.blocks) + 1 :]
    normed = [module for module in behind if {tuple(p.shape) for p in module.parameters()} == {(width,)}]
    return normed[-1] if normed else None
