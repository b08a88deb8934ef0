"""A pipeline stage: a Hugging Face model without what other stages hold. Names and indices stay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy

#: What some backbones do to embeddings before the first block, and the value that leaves alone the
#: hidden states that stages behind the first are given in their place.
_BEFORE_BLOCKS: dict[str, float] = {"embedding_multiplier": 1.0, "embedding_dropout": 0.0}
#: Methods of backbones that make of tokens and embeddings what each block is given.
_OF_TOKENS = ("get_per_layer_inputs", "project_per_layer_inputs")

#: Where a block finds a tensor: () for the residual stream; the place or name of an argument; that,
#: and the place in a tuple; that, a mapping's key, and the place in what is found there.
Place = tuple[Any, ...]

#: Whole numbers that are as wide as two elements, by the bytes of one.
_WHOLE = {2: torch.int32, 4: torch.int64}


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
class Passed:
    """A tensor that passes between stages. `sizes`: of its dimensions, those of rows and tokens in
    `order` first, as in messages [batch, length, width]; `read`: the blocks that find it, where;
    `whole`: tokens or places of them, at most as many as a row has, each in two elements' bits."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    read: tuple[tuple[int, Place], ...]
    whole: bool = False

    @property
    def width(self) -> int:
        """Elements of one token."""
        return torch.Size(self.sizes).numel() * (2 if self.whole else 1)

    def fold(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As it lies in a message."""
        if self.whole:
            missing = self.width // 2 - tensor.shape[2:].numel()
            numbers = nn.functional.pad(tensor, (0, missing)) if self.sizes else tensor.unsqueeze(2)
            return numbers.to(_WHOLE[dtype.itemsize]).view(dtype)
        return (tensor if self.order == (0, 1, 2) else tensor.permute(self.order).flatten(2)).to(dtype)

    def unfold(self, folded: torch.Tensor) -> torch.Tensor:
        """As blocks know it."""
        if self.whole:
            numbers = folded.detach().contiguous().view(_WHOLE[folded.dtype.itemsize]).long()
            return numbers[..., : numbers.shape[1]] if self.sizes else numbers.squeeze(2)
        if self.order == (0, 1, 2):
            return folded
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return folded.unflatten(2, self.sizes).permute(back)


@dataclass(frozen=True, kw_only=True)
class StageEnds:
    """What runs outside the blocks beside embedding and head: names of modules that hold weights.
    `before`, `behind`: what stages behind the first, and before the last, do without; `passed`: for
    each block what a stage that begins with it is sent, the residual stream first; empty where
    nothing changes embeddings before the first block, or hidden states behind the last norm, and
    the stream alone is sent; `returned`: values of a block's tuple, or 0."""

    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    passed: tuple[tuple[Passed, ...], ...] = ()
    returned: int = 0


class PassOn(nn.Module):
    """Stands in for another stage's block or norm: returns its first argument, in a tuple as long
    as `returned` says. The block's own attributes (numbers, names) can still be read. It puts in
    what was `received`, and takes out what is `kept`."""

    def __init__(self, old: nn.Module | None = None, *, returned: int = 0) -> None:
        super().__init__()
        said = {} if old is None else vars(old)
        vars(self).update({name: value for name, value in said.items() if isinstance(value, str | int | float)})
        self._returned = returned
        self.received: dict[Place, torch.Tensor] = {}
        self.kept: dict[Place, torch.Tensor] | None = None

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The residual stream, as it came."""
        hidden_states = self.received.pop((), hidden_states)
        if self.kept is not None:
            self.kept |= {(): hidden_states, **dict(tensors_given((hidden_states, *args), kwargs)), **self.received}
        self.received.clear()
        return (hidden_states, *[None] * (self._returned - 1)) if self._returned else hidden_states


def tensors_given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Place, torch.Tensor]]:
    """The tensors among a block's arguments, each with its place."""
    for name, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield (name,), value
            continue
        inside = cast(Mapping[Any, Any], value).items() if isinstance(value, Mapping) else [(None, value)]
        for key, several in inside:
            for index, leaf in enumerate(tree_leaves(several)):
                if isinstance(leaf, torch.Tensor):
                    yield (name, index) if key is None else (name, key, index), leaf


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
        if ends.passed:
            _put_in(backbone, blocks, place, ends.passed[place.blocks.start])
    if not place.is_last:
        for module in map(anatomy.model.get_submodule, ends.behind):
            _replace(anatomy.model, module, PassOn())
        _replace(anatomy.model, anatomy.head, None)
        if ends.passed:
            _take_out(backbone, cast(list[PassOn], blocks), ends.passed[place.blocks.stop])


def _put_in(backbone: nn.Module, blocks: nn.ModuleList, place: StagePlace, passed: Sequence[Passed]) -> None:
    """Makes blocks find what the stage received, and the last one before its own give the stream.
    The code before the blocks gets zeros, which some of it changes in place."""
    received: dict[int, dict[Place, torch.Tensor]] = {index: {} for index in range(len(blocks))}
    for index, block in enumerate(blocks):
        if isinstance(block, PassOn):
            block.received = received[index]
        elif any(index == reader for one in passed[1:] for reader, _ in one.read):
            block.register_forward_pre_hook(partial(_find, received[index]), with_kwargs=True)

    def receive(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        message: torch.Tensor = kwargs["inputs_embeds"]
        folded = message.split([one.width for one in passed], dim=2) if len(passed) > 1 else (message,)
        stream, *others = (one.unfold(part) for one, part in zip(passed, folded, strict=True))
        received[place.blocks.start - 1][()] = stream
        for one, tensor in zip(passed[1:], others, strict=True):
            for reader, where in one.read:
                received[reader][where] = tensor
        nothing = message.new_zeros(1, 1, len(blocks), 1)
        vars(backbone).update({name: lambda *_: nothing for name in _OF_TOKENS if hasattr(backbone, name)})
        return args, {**kwargs, "inputs_embeds": message.new_zeros(*message.shape[:2], stream.shape[-1])}

    backbone.register_forward_pre_hook(receive, with_kwargs=True)


def _find(received: dict[Place, torch.Tensor], _block: nn.Module, args: Any, kwargs: Any) -> Any:
    """Puts what was received in its place among a block's arguments."""
    given = {**dict(enumerate(args)), **kwargs}
    for (name, *inside), tensor in received.items():
        if inside:  # the tensors of a mapping's key in order
            given[name][inside[0]] = (*given[name].get(inside[0], ()), tensor)
        else:
            given[name] = tensor
    received.clear()
    return tuple(given[index] for index in range(len(args))), {name: given[name] for name in kwargs}


def _take_out(backbone: nn.Module, blocks: Sequence[PassOn], passed: Sequence[Passed]) -> None:
    """Makes a backbone return what the stage's last block gave, and what passes on beside."""
    from transformers.modeling_outputs import BaseModelOutput

    behind = {one.read[0][0] for one in passed}
    for index in behind:
        blocks[index].kept = {}

    def give(*_: Any) -> Any:
        kept = {index: cast(dict[Place, torch.Tensor], blocks[index].kept) for index in behind}
        found = [(one, kept[one.read[0][0]][one.read[0][1]]) for one in passed]
        for several in kept.values():
            several.clear()
        folded = [one.fold(tensor, found[0][1].dtype) for one, tensor in found]
        message = folded[0] if len(folded) == 1 else torch.cat(folded, dim=2)
        return BaseModelOutput(last_hidden_state=message)  # pyright: ignore

    backbone.register_forward_hook(give)


def _replace(model: nn.Module, old: nn.Module, new: nn.Module | None) -> None:
    for holder in list(model.modules()):
        for name in [name for name, module in holder.named_children() if module is old]:
            setattr(holder, name, new)


def planned_ends(anatomy: Anatomy) -> StageEnds:
    """The final norm alone, by a model's transformers pipeline plan. Raises as `outer_modules`."""
    norm = getattr(anatomy.backbone, outer_modules(anatomy)[1])
    names = (name for name, module in anatomy.model.named_modules() if module is norm)
    return StageEnds(behind=(next(names),))


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
