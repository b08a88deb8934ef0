"""What runs before a model's blocks and behind them, seen in one forward: whether stages can pass on one residual
stream, and what each then does without."""

from collections import Counter
from itertools import pairwise

from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy
from shardwise.models.built.traced import Seen
from shardwise.models.stage import StageEnds


def read_ends(anatomy: Anatomy, seen: Seen) -> StageEnds:
    """Of a model whose forward was seen. Raises UnsupportedError: more passes between blocks than one tensor like the
    embeddings and what each rank can make of positions; says what."""
    blocks, modules = seen.blocks, dict(anatomy.model.named_modules())
    refuse_unchained(anatomy, seen)
    if any(block.given.ndim != 3 for block in blocks):
        raise UnsupportedError("its blocks pass on more than one residual stream")
    if any(id(tensor) in seen.of_tokens for block in blocks for tensor in block.others):
        raise UnsupportedError("its blocks are given what was made of tokens beside the residual stream")
    if any(count > 1 for count in holders(anatomy.blocks).values()):
        raise UnsupportedError("its blocks share weights")
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
    return StageEnds(before=tuple(before), behind=tuple(behind), returned=seen.returned)


def refuse_unchained(anatomy: Anatomy, seen: Seen) -> None:
    """Raises UnsupportedError: its blocks do not run once each, in order, each on what the one before gave."""
    names = {id(module): name for name, module in anatomy.model.named_modules()}
    if [block.name for block in seen.blocks] != [names[id(block)] for block in anatomy.blocks]:
        raise UnsupportedError("its blocks do not run once each in order")
    if any(one.made is not other.given for one, other in pairwise(seen.blocks)):
        raise UnsupportedError("something runs between its blocks")


def why_unstaged(anatomy: Anatomy, seen: Seen | None) -> str:
    """Why a model is not cut in stages; "" where it can be."""
    if seen is None:
        return "its forward could not be followed without numbers"
    try:
        read_ends(anatomy, seen)
    except UnsupportedError as error:
        return str(error)
    return ""


def holders(blocks: nn.ModuleList) -> Counter[int]:
    """How many blocks hold each parameter."""
    return Counter(key for block in blocks for key in {id(parameter) for parameter in block.parameters()})
