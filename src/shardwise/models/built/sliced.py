"""Whether tensor parallelism can slice the blocks of a model that was built to read its shape.

transformers' plan must slice each matrix by its role, and the model must run with one rank's
slices.
"""

from contextlib import suppress
from typing import Any

import torch
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import Anatomy, tensor_plan
from shardwise.models.built.roles import Block
from shardwise.models.built.traced import BlockCall, Seen
from shardwise.models.built.watch import is_linear, watch, watchable
from shardwise.models.stage import final_norm
from shardwise.spec.model.shape import Cut, Matrix

#: What transformers calls a matrix of which this dim is sliced, and a norm of single heads, which is not.
_STYLES: dict[Cut, str] = {"rows": "colwise", "columns": "rowwise"}
_WHOLE = "replicated_with_grad_allreduce"


def why_whole(anatomy: Anatomy) -> str:
    """Why tensor parallelism does not slice a model that was not seen to be `slices_alike`, nor
    `deals_alike`."""
    try:
        tensor_plan(anatomy.backbone.config)
    except UnsupportedError:
        return "transformers has no tensor parallel plan of its blocks"
    return "transformers' plan does not slice its matrices by what each was seen to read, or not all of them"


def slices_alike(anatomy: Anatomy, seen: Seen, blocks: list[Block]) -> bool:
    """Whether a model's blocks can be sliced by the plan, and run. The model is used up."""
    try:
        plan = tensor_plan(anatomy.backbone.config)
    except UnsupportedError:
        return False
    pairs = list(zip(seen.blocks, blocks, strict=True))
    if not all(_is_planned(call, block, plan) and _is_handed_on(call, block, seen) for call, block in pairs):
        return False
    heads = blocks[0].key_value_heads
    degree = next((degree for degree in range(2, heads + 1) if heads % degree == 0), None)
    return degree is not None and _runs_sliced(anatomy, blocks, degree=degree)


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
    plain = type(anatomy.embedding) is nn.Embedding and isinstance(anatomy.head, nn.Linear)
    inside = any(hasattr(block, "experts") for block in anatomy.blocks)
    width: int = anatomy.backbone.config.hidden_size  # pyright: ignore
    return plain and not inside and final_norm(anatomy, width=width) is not None


def _is_planned(call: BlockCall, block: Block, plan: dict[str, str]) -> bool:
    """Whether the plan slices each matrix by its role, keeps norms of heads, and no more."""
    apart = sum(m.reads == "attention_input" for m in block.matrices) == 3 and not block.parallel
    widened = [m for m in block.matrices if m.reads == "mlp_input"]
    apart = apart and len(widened) == (2 if block.mlp == "gated" else 1)
    words = {m.name: _STYLES[m.sliced_by] for m in block.matrices if m.sliced_by is not None and not m.transposed}
    of_heads = {norm.name for norm in block.norms if norm.size and norm.size == block.head_dim and norm.count == 1}
    norms = [c for c in call.calls if not is_linear(c.module)]
    alike = all(c.given.shape[-1] in (block.width, block.head_dim) for c in norms) and block.width != block.head_dim
    on_stream = {norm.name for norm in block.norms if norm.width == block.width} - of_heads
    known = of_heads | on_stream | {norm.name for norm in block.norms if not norm.size}
    planned = words | {name: _WHOLE for name in of_heads if plan.get(name) == _WHOLE}
    kept = all(plan.get(name) == _WHOLE for name in of_heads)
    return apart and alike and kept and plan == planned and {norm.name for norm in block.norms} <= known


def _is_handed_on(call: BlockCall, block: Block, seen: Seen) -> bool:
    """Whether matrices sliced by rows read what the module around them is handed."""
    given = {c.name: c.given for c in call.calls}
    for matrix in block.matrices:
        around = matrix.name.rpartition(".")[0]
        if matrix.sliced_by == "rows" and (
            not around or seen.handed.get(f"{call.name}.{around}") is not given[f"{call.name}.{matrix.name}"]
        ):
            return False
    return True


def _runs_sliced(anatomy: Anatomy, blocks: list[Block], *, degree: int) -> bool:
    """Whether one rank's slices of all blocks run, and keep the stream's width."""
    if any(block.intermediate % degree or block.heads % degree for block in blocks):
        return False
    for module, block in zip(anatomy.blocks, blocks, strict=True):
        for matrix in block.matrices:
            _slice(module.get_submodule(matrix.name), matrix, degree=degree)
    try:
        with watchable():
            seen = watch(anatomy)
    except Exception:  # noqa: BLE001 - whatever it raises, it does not run
        return False
    return all(
        len(call.attention) == 1
        and call.attention[0].query.shape[1] * degree == block.heads
        and call.attention[0].key.shape[1] * degree == block.key_value_heads
        and call.made is not None
        and call.made.shape == call.given.shape
        for call, block in zip(seen.blocks, blocks, strict=True)
    )


def _slice(linear: nn.Module, matrix: Matrix, *, degree: int) -> None:
    by_rows = matrix.sliced_by == "rows"
    rows, columns = (matrix.rows // degree, matrix.columns) if by_rows else (matrix.rows, matrix.columns // degree)
    linear.register_parameter("weight", nn.Parameter(linear.get_parameter("weight").new_empty(rows, columns)))
    if matrix.bias and by_rows:
        linear.register_parameter("bias", nn.Parameter(linear.get_parameter("bias").new_empty(rows)))
