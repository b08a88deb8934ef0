"""Tensor parallelism with sequence parallelism between the matrices.

How each matrix is sliced is transformers' own plan of the model. Activations are communicated here:

embedding           each rank looks up the ids of its rows; results are summed
first block         each rank keeps its part of the sequence, for residuals and norms
attention and MLP   the sequence is gathered before, and reduce-scattered after
experts             the sequence is gathered before; each rank has some, whose results are summed
fused matrices      each rank has rows of each part: of queries, keys and values; of gate and up
norms of all heads  each rank has its heads, and the mean over all ranks
what is not sliced  the sequence is gathered before; each rank keeps its part of what all compute
whole streams       nothing is gathered nor scattered, where blocks read more than the stream: sums
                    after attention, MLP and experts are whole
final norm          the sequence is gathered after
head                each rank has logits of its rows, which the loss compares (`Rows`) or gathers

Gradients of replicated parameters are partial sums: FSDP2 sums them at each backward, or
`settle_gradients` once per step.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from shardwise.errors import UnsupportedError
from shardwise.parallel.experts import deal_experts
from shardwise.parallel.tensor.collectives import Move, Moves, Rows, WholeMoves
from shardwise.parallel.tensor.slices import Slicer, slice_magnitudes
from shardwise.spec.layout.axes import rows_of_shard
from shardwise.spec.support.splits import has_one_key_head, style_of

_WHOLE, _ROWS, _COLUMNS = Replicate(), Shard(0), Shard(1)

#: transformers' style of a module -> placements of a linear layer (with scales, where it is
#: quantised), of its adapter's A and B, and of DoRA's magnitudes.
SLICES: dict[str, dict[str, Placement]] = {
    "colwise": {**dict.fromkeys(("weight", "scales", "bias", "B.weight", "M.weight"), _ROWS), "A.weight": _WHOLE},
    "rowwise": {
        **dict.fromkeys(("weight", "scales", "A.weight"), _COLUMNS),
        **dict.fromkeys(("bias", "B.weight", "M.weight"), _WHOLE),
    },
}

#: Where a linear layer's parts lie in PEFT's wrappers: itself, adapters' A, B, DoRA's magnitudes.
_PARTS = {
    "": re.compile(r"|base_layer|original_module|modules_to_save\.\w+"),
    "A.": re.compile(r"lora_A\.\w+"),
    "B.": re.compile(r"lora_B\.\w+"),
    "M.": re.compile(r"lora_magnitude_vector\.\w+"),
}
#: PEFT's wrappers in the name of a module that is trained as a copy (`modules_to_save`).
_COPY = re.compile(r"(^|\.)(original_module|modules_to_save\.\w+)(?=\.|$)")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a model, or of one pipeline stage of it. `plan`: name of a module inside a block
    -> transformers' style; `embedding`, `norm`, `head`: None, or of the norm an identity, where
    another stage has it; `blocks`: those here, in order; `experts`: module that routes -> its
    experts, which are dealt whole; `compares`: the head's linear layers compare logits by the
    `Rows` in their `vocabulary`, else they are gathered; `drops`: the model has dropout;
    `backbone`: given where each rank has the whole stream between the blocks of the whole model."""

    plan: Mapping[str, str]
    embedding: nn.Module | None
    blocks: Sequence[nn.Module]
    norm: nn.Module
    head: nn.Module | None
    experts: Mapping[nn.Module, nn.Module] = field(default_factory=dict[nn.Module, nn.Module])
    compares: bool = False
    drops: bool = False
    backbone: nn.Module | None = None


def apply_tensor(parts: Parts, *, mesh: DeviceMesh) -> None:
    """Slices a model on the meta device in place, over axis `tp`; UnsupportedError if it cannot."""
    moves, slicer = (Moves if parts.backbone is None else WholeMoves)(mesh=mesh), Slicer(mesh)
    if parts.embedding is not None:
        _slice_embedding(parts.embedding, slicer=slicer, moves=moves)
    for block in parts.blocks:
        sliced = _sliced_modules(block, parts.plan)
        _slice_block(block, sliced, experts=parts.experts, slicer=slicer, moves=moves)
        if parts.drops:  # dropout of slices differs between ranks; of gathered activations it is the same
            streams, rowwise = RandomStreams(block, mesh=mesh), [n for n, style in sliced.items() if style == "rowwise"]
            for name, module in block.named_modules():
                if name.endswith("lora_dropout") and not _is_inside(name, rowwise):
                    streams.share(module)
    if parts.head is not None:
        _slice_head(parts.head, compares=parts.compares, slicer=slicer, moves=moves)
    _keep_whole(parts.backbone or parts.norm, slicer=slicer)
    if not moves.splits_sequence:
        return
    # Outside, all have the whole: masks and positions come from embeddings, losses of whole rows.
    _before(parts.blocks[0], moves.scatter_sequence)
    _after(parts.norm, partial(moves.gather_sequence, sliced_after=parts.head is not None))


def _slice_embedding(embedding: nn.Module, *, slicer: Slicer, moves: Moves) -> None:
    """By rows. A trained copy (`modules_to_save`) is sliced like its original."""
    rank, degree = slicer.mesh.get_local_rank(), slicer.mesh.size()
    for table in [module for module in embedding.modules() if isinstance(module, nn.Embedding)]:
        slicer.slice(table, {"weight": _ROWS})
        first = rank * rows_of_shard(table.num_embeddings, degree=degree, index=0)
        count = rows_of_shard(table.num_embeddings, degree=degree, index=rank)
        if table.padding_idx is not None:
            here = table.padding_idx - first
            table.padding_idx = here if 0 <= here < count else None
        vars(table)["forward"] = partial(_look_up, table.forward, first, count, moves)


def _look_up(forward: Callable[[Tensor], Tensor], first: int, count: int, moves: Moves, ids: Tensor) -> Tensor:
    here = ids - first
    elsewhere = (here < 0) | (here >= count)
    found = forward(here.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0)
    return moves.sum_to_all(found)


def _slice_head(head: nn.Module, *, compares: bool, slicer: Slicer, moves: Moves) -> None:
    """By rows: each rank computes its logits of every token."""
    _slice_linear(head, "colwise", slicer=slicer)
    size = head.get_parameter("weight").shape[0]
    if not compares:
        _after(head, partial(moves.gather_features, size=size))
        return
    first = slicer.mesh.get_local_rank() * rows_of_shard(size, degree=slicer.mesh.size(), index=0)
    rows = Rows(group=slicer.mesh.get_group(), first=first)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            vars(module)["vocabulary"] = rows


def _slice_block(
    block: nn.Module, sliced: Mapping[str, str], *, experts: Mapping[nn.Module, nn.Module], slicer: Slicer, moves: Moves
) -> None:
    named = dict(block.named_modules())
    routers = {name: module for name, module in named.items() if module in experts}
    for name, style in sliced.items():
        module, parts = named[name], ()
        if style == "rowwise":
            _after(module, moves.sum_to_whole if _is_inside(name, routers) else moves.sum_to_sequence)
        else:
            rows, norm = module.get_parameter("weight").shape[0], named.get(f"{name.removesuffix('_proj')}_norm")
            parts = _parts(name, rows, around=named[_around(name)], degree=slicer.mesh.size())
            _slice_norm(norm, rows=rows, slicer=slicer, moves=moves)
        _slice_linear(module, style, slicer=slicer, parts=parts)
    groups = {_around(name) for name, style in sliced.items() if style == "colwise" and not _is_inside(name, routers)}
    for attention in (cast(Any, named[group]) for group in groups):
        if hasattr(attention, "num_key_value_groups") and has_one_key_head(attention.config):
            attention.num_key_value_groups //= slicer.mesh.size()
    for router in routers.values():
        deal_experts(experts[router], slicer=slicer, moves=moves)
    whole = _gather_around(block, groups, experts=experts, moves=moves) if moves.splits_sequence else [block]
    _keep_whole(block, slicer=slicer)
    for module in whole:
        slicer.open(module)


def _gather_around(
    block: nn.Module, groups: Collection[str], *, experts: Mapping[nn.Module, nn.Module], moves: Moves
) -> list[nn.Module]:
    """Gathers the sequence once for all layers that read it; modules that each rank has whole."""
    gather, whole = partial(moves.gather_sequence, sliced_after=True), list[nn.Module]()
    for group in groups:
        _before(block.get_submodule(group), gather)
    for name, module in block.named_children():
        inside = (group for group in groups if _is_inside(f"{group}.", [name]))
        if next(inside, None) is None and (module in experts or any(p.ndim > 1 for p in module.parameters())):
            _before(module, gather)
            _keep_part_after(module, moves.keep_part)
            whole.append(module)
    return whole


def _around(name: str) -> str:
    return name.rpartition(".")[0]


def _is_inside(name: str, outer: Iterable[str]) -> bool:
    return any(name.startswith(f"{one}.") for one in outer)


def _sliced_modules(block: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """Name in a block -> style, where makers and readers of slices are planned; of copies both."""
    found: dict[str, str] = {}
    for name, _ in block.named_modules():
        style = style_of(_COPY.sub("", name).removeprefix("."), plan)
        if style in SLICES and not _is_inside(name, found):
            found[name] = style
    both = Counter(group for group, _ in {(_around(name), style) for name, style in found.items()})
    return {name: style for name, style in found.items() if both[_around(name)] == len(SLICES)}


def _parts(name: str, rows: int, *, around: nn.Module, degree: int) -> tuple[int, ...]:
    """Rows of the parts of a matrix, of each of which a slice has some; () where it is one. Code
    that takes queries, keys and values apart counts a rank's heads from here on."""
    attention: Any = around
    if not name.endswith("qkv_proj") or hasattr(attention, "mp_num"):  # CodeGen has them for each group of heads
        return (rows // 2, rows // 2) if name.endswith("gate_up_proj") else ()
    keys = attention.num_key_value_heads * attention.head_dim
    attention.config = copy(attention.config)
    attention.config.num_attention_heads //= degree
    attention.num_key_value_heads //= degree
    return rows - 2 * keys, keys, keys


def _slice_norm(norm: nn.Module | None, *, rows: int, slicer: Slicer, moves: Moves) -> None:
    """Slices a norm that weighs all rows of what it reads. One that goes over them as a whole is a
    root-mean-square norm, and has the mean of all ranks; else each head has a mean of its own."""
    for one in [module for module in norm.modules() if "weight" in module._parameters] if norm else ():
        weight = one.get_parameter("weight")
        if weight.numel() == rows:
            if weight.ndim == 1:
                one.forward = partial(_norm_over_ranks, one, moves)
            slicer.slice(one, {"weight": _ROWS})


def _norm_over_ranks(norm: nn.Module, moves: Moves, part: Tensor) -> Tensor:
    its, wide = cast(Any, norm), part.float()
    mean = moves.sum_to_whole(wide.pow(2).mean(-1, keepdim=True)) / moves.mesh.size()
    return (its.weight * (wide * torch.rsqrt(mean + its.variance_epsilon))).to(part.dtype)


def _slice_linear(wrapped: nn.Module, style: str, *, slicer: Slicer, parts: Sequence[int] = ()) -> None:
    for name, module in wrapped.named_modules():
        parameters = [key for key, parameter in module._parameters.items() if parameter is not None]
        if not parameters:
            continue
        part = next((part for part, pattern in _PARTS.items() if pattern.fullmatch(name)), None)
        if part is None or not (isinstance(module, nn.Linear) or part == "M."):
            raise UnsupportedError(
                f"{name or type(module).__name__} of {type(wrapped).__name__} is not sliced by tensor parallel in this "
                "version; train LoRA or DoRA adapters of linear layers, or use tp: 1"
            )
        placements = {key: SLICES[style][part + key] for key in parameters}
        if parts and part != "A.":
            vars(module)["parts_of_rows"] = parts, slicer.mesh.size()
        if part == "M.":
            slice_magnitudes(module, placements, layer=wrapped, slicer=slicer)
        else:
            slicer.slice(module, placements, once=["bias"] if style == "rowwise" else [])
            if "scales" in placements:
                here = {"index": slicer.mesh.get_local_rank(), "degree": slicer.mesh.size()}
                cast(Any, module).take_slice(0 if style == "colwise" else 1, **here, parts=parts)


def _keep_whole(owner: nn.Module, *, slicer: Slicer) -> None:
    kept: set[nn.Module] = set()
    for module in owner.modules():
        here = {key: p for key, p in module._parameters.items() if p is not None and not isinstance(p, DTensor)}
        if here:
            slicer.slice(module, dict.fromkeys(here, _WHOLE))
            kept.add(module)
    for module in owner.modules():
        # PEFT's wrapper around a bare parameter reads what is inside, and so do magnitudes.
        reads = hasattr(module, "parameter_name") or _has_magnitudes_of_whole(module)
        if reads and not kept.isdisjoint(module.modules()):
            slicer.open(module)


def _has_magnitudes_of_whole(layer: Any) -> bool:
    """Whether it is a layer with DoRA around a matrix that is not sliced."""
    if not getattr(layer, "lora_magnitude_vector", None):
        return False
    weight = layer.get_base_layer().weight
    return isinstance(weight, DTensor) and weight.placements == (_WHOLE,)


def _before(module: nn.Module, move: Move) -> None:
    """Applies a collective to a module's hidden states, its first argument or a keyword."""

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (move(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": move(kwargs["hidden_states"])}

    module.register_forward_pre_hook(hook, with_kwargs=True)


def _after(module: nn.Module, move: Move) -> None:
    module.register_forward_hook(lambda *called: move(cast(Tensor, called[-1])))


def _keep_part_after(module: nn.Module, move: Move) -> None:
    """Applies a collective to hidden states of all tokens: a module's output, or its first one."""

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        whole: Tensor = args[0] if args else kwargs["hidden_states"]
        first, *more = output if isinstance(output, tuple) else (output,)
        part = move(first.view(whole.shape))
        return (part, *more) if isinstance(output, tuple) else part

    module.register_forward_hook(hook, with_kwargs=True)


class RandomStreams:
    """The random streams of a block's dropout on one rank of axis `tp`. Outside the blocks ranks
    share a stream. Inside each has its own, seeded from it, for its slice; adapters drop out of
    gathered activations, by a third, shared one. Recompute restores the generator's state."""

    def __init__(self, block: nn.Module, *, mesh: DeviceMesh) -> None:
        self._rank = mesh.get_local_rank()
        self._seed = 0
        self._shared: torch.Generator | None = None
        block.forward = partial(self._run, block, block.forward)

    def share(self, module: nn.Module) -> None:
        """Makes all ranks draw the same dropout masks inside a module."""
        for dropout in module.modules():
            if isinstance(dropout, nn.Dropout):
                vars(dropout)["forward"] = partial(self._drop, dropout)

    def _run(self, block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not block.training:
            return forward(*args, **kwargs)
        self._seed, self._shared = int(torch.randint(2**62, ())), None
        with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
            torch.manual_seed(self._seed + 1 + self._rank)
            return forward(*args, **kwargs)

    def _drop(self, dropout: nn.Dropout, whole: Tensor) -> Tensor:
        if not dropout.training or not dropout.p:
            return whole
        if self._shared is None:
            self._shared = torch.Generator(whole.device).manual_seed(self._seed)
        kept = torch.empty_like(whole, dtype=torch.bool).bernoulli_(1 - dropout.p, generator=self._shared)
        return whole * kept / (1 - dropout.p)
