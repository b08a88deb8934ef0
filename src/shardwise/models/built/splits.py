"""How blocks of a model built to read its shape split: whether stages can send what passes between
them, and what each omits; whether tensor parallelism can slice them, by transformers' plan."""

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy, tensor_plan
from shardwise.models.built.watch import BATCH, CHANGED, LENGTH, Seen, watch, watchable
from shardwise.models.stage import Passed, Place, StageEnds, final_norm
from shardwise.spec.model.shape import Split

_UNSENT = "its blocks are given what was made of tokens beside the residual stream, in a form that stages do not send"


def read_ends(anatomy: Anatomy, seen: Seen) -> StageEnds:
    """Of a model whose forward was seen. Raises UnsupportedError: between blocks passes what stages
    do not send to each other, nor make of positions; says what."""
    blocks, modules = seen.blocks, dict(anatomy.model.named_modules())
    refuse_unchained(anatomy, seen)
    if any(count > 1 for count in holders(anatomy.blocks).values()):
        raise UnsupportedError("its blocks share weights")
    chosen = getattr(anatomy.backbone.config, "index_topk", None) or 0
    passed = tuple(_passed(seen, index, chosen=chosen) for index in range(len(blocks)))
    held = {id(parameter) for block in anatomy.blocks for parameter in block.parameters()}
    of_ends = {id(p) for end in (anatomy.embedding, anatomy.head) for p in end.parameters()}
    before: list[str] = []
    behind: list[str] = []
    for name, module in modules.items():
        outside = [p for p in module._parameters.values() if p is not None and id(p) not in held | of_ends]
        if not outside:
            continue
        ran = seen.ran_outside.get(name)
        if ran is None or ran not in (0, len(blocks)):
            raise UnsupportedError(f"{name or 'a weight'} stands outside its blocks, and at neither of their ends")
        (behind if ran else before).append(name)
    return StageEnds(before=tuple(before), behind=tuple(behind), passed=passed, returned=seen.returned)


def _passed(seen: Seen, first: int, *, chosen: int) -> tuple[Passed, ...]:
    """What a stage that begins with block `first` is sent: the stream, and what was made of tokens
    before that block and is given to it and those behind. `chosen`: tokens that one may choose."""
    tensors: dict[int, torch.Tensor] = {0: seen.blocks[first].given}
    read: dict[int, list[tuple[int, Place]]] = {0: [(first, ())]}
    for index, block in enumerate(seen.blocks[first:], first):
        for place, tensor in block.others:
            ready = seen.of_tokens.get(id(tensor))
            if ready is None:
                continue
            if ready == CHANGED or len(place) == 2:
                raise UnsupportedError(_UNSENT)
            if ready <= first and (len(place) < 3 or id(tensor) not in tensors):
                # What a mapping holds is put into it once, for all blocks behind.
                tensors[id(tensor)] = tensor
                read.setdefault(id(tensor), []).append((index if len(place) < 3 else first, place))
    return tuple(_form(tensor, tuple(read[key]), chosen=chosen) for key, tensor in tensors.items())


def _form(tensor: torch.Tensor, read: tuple[tuple[int, Place], ...], *, chosen: int) -> Passed:
    shape = tensor.shape
    sizes = (chosen,) if len(shape) == 3 else ()
    whole = tensor.dtype in (torch.int32, torch.int64)
    if whole and shape == (BATCH, LENGTH, *(min(size, LENGTH) for size in sizes)):
        return Passed(sizes=sizes, order=(0, 1, 2), read=read, whole=True)
    if not tensor.is_floating_point() or len(shape) < 3 or [*shape].count(BATCH) != 1 or [*shape].count(LENGTH) != 1:
        raise UnsupportedError(_UNSENT)
    others = [index for index, size in enumerate(shape) if size not in (BATCH, LENGTH)]
    order = (shape.index(BATCH), shape.index(LENGTH), *others)
    return Passed(sizes=tuple(shape[index] for index in others), order=order, read=read)


def refuse_unchained(anatomy: Anatomy, seen: Seen) -> None:
    """Raises UnsupportedError: blocks do not run once each, in order, each on the output before."""
    names = {id(module): name for name, module in anatomy.model.named_modules()}
    if [block.name for block in seen.blocks] != [names[id(block)] for block in anatomy.blocks]:
        raise UnsupportedError("its blocks do not run once each in order")
    if any(one.made is None or _seen_as(one.made) != _seen_as(other.given) for one, other in pairwise(seen.blocks)):
        raise UnsupportedError("something runs between its blocks")


def _seen_as(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a tensor has in common with a view of all of it, and with no other."""
    return tensor.untyped_storage()._cdata, tensor.shape, tensor.stride(), tensor.storage_offset()


def ends_or_why(anatomy: Anatomy, seen: Seen | None) -> tuple[StageEnds, str]:
    """As `read_ends`; or of nothing, and why a model is not cut in stages."""
    if seen is None:
        return StageEnds(), "its forward could not be followed without numbers"
    try:
        return read_ends(anatomy, seen), ""
    except UnsupportedError as error:
        return StageEnds(), str(error)


def holders(blocks: nn.ModuleList) -> Counter[int]:
    """How many blocks hold each parameter."""
    return Counter(key for block in blocks for key in {id(parameter) for parameter in block.parameters()})


def plan_of(config: Any) -> dict[str, str] | None:
    """As `tensor_plan`; None where there is none."""
    try:
        return tensor_plan(config)
    except UnsupportedError:
        return None


def slices(anatomy: Anatomy, seen: Seen | None) -> tuple[Split, ...]:
    """How tensor parallelism slices a model by its plan: with parts of the sequence between the
    matrices, or with the whole stream on each rank; nothing where it does not."""
    if plan_of(anatomy.backbone.config) is None:
        return ()
    return ("slices",) if seen is not None and _reads_parts(anatomy, seen) else ("slices", "whole_stream")


def _reads_parts(anatomy: Anatomy, seen: Seen) -> bool:
    """Whether ranks can have parts of the sequence between matrices: each part of a block with
    matrices is given the stream [batch, length, width] and gives one like it, and nothing that was
    made of tokens before all blocks; the embedding has no more than a table, and a norm stands
    behind the blocks."""
    beside = (seen.of_tokens.get(id(t)) == 0 and len(at) == 1 for block in seen.blocks[1:] for at, t in block.others)
    config = anatomy.backbone.config
    if [*anatomy.embedding.children()] or any(hasattr(block, "experts") for block in anatomy.blocks):
        return False
    if any(beside) or final_norm(anatomy, width=config.hidden_size) is None:  # pyright: ignore
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
    return len(alike) == len(matrices) > 0 and all(alike)
