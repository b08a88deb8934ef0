"""Experts: their matrices, which transformers stacks in two parameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardwise.catalog.families.blocks import Dimensions, Matrices
from shardwise.spec.model.shape import Matrix

#: Which blocks of a model have experts in the place of the MLP.
Placement = Callable[[Dimensions], Sequence[bool]]


def everywhere(d: Dimensions) -> Sequence[bool]:
    """In every block."""
    return (True,) * d.layers


def behind_first(d: Dimensions) -> Sequence[bool]:
    """Behind `first_k_dense_replace` dense ones."""
    return [index >= (d.optional["first_k_dense_replace"] or 0) for index in range(d.layers)]


def every_few(d: Dimensions) -> Sequence[bool]:
    """In every `decoder_sparse_step`-th, but for those that `mlp_only_layers` lists."""
    dense = d.layer_lists["mlp_only_layers"] or ()
    step = d.numbers["decoder_sparse_step"]
    return [bool(d.numbers["num_experts"]) and (n + 1) % step == 0 and n not in dense for n in range(d.layers)]


def interleaved(d: Dimensions) -> Sequence[bool]:
    """Where `moe_layers` says, or in every `interleave_moe_layer_step`-th."""
    listed = d.layer_lists["moe_layers"]
    step = d.numbers["interleave_moe_layer_step"]
    return [(index + 1) % step == 0 if listed is None else index in listed for index in range(d.layers)]


def experts(module: str, *, router: str = "gate", count: str = "num_experts", width: str | None = None) -> Matrices:
    """A router, and the stacked gate-and-up and down projections; `count` and `width` are keys."""

    def matrices(d: Dimensions) -> tuple[Matrix, ...]:
        number, inner = d.numbers[count], d.numbers[width] if width else d.intermediate
        kind: dict[str, Any] = {"count": number, "stacked": True, "adaptable": False}
        kind["active"] = min(number, d.numbers["num_experts_per_tok"])
        up = Matrix(f"{module}.experts.gate_up_proj", 2 * inner, d.hidden, reads="expert_input", **kind)
        down = replace(up, name=f"{module}.experts.down_proj", rows=d.hidden, columns=inner, reads="expert_product")
        gate = Matrix(f"{module}.{router}", number, d.hidden, reads="mlp_input", adaptable=False)
        return gate, up, down

    return matrices


def changed(matrices: Matrices, *, router: bool = False, stacks: bool = False, **changes: bool) -> Matrices:
    """The same matrices with other properties of the router, or of the stacks."""

    return lambda d: tuple(replace(m, **changes) if (stacks if m.stacked else router) else m for m in matrices(d))


def whole(matrices: Matrices) -> Matrices:
    """The same matrices, which transformers' plan does not slice."""
    return lambda d: tuple(replace(m, whole=True) for m in matrices(d))


def together(*parts: Matrices) -> Matrices:
    """All of them: experts, and what runs for every token."""
    return lambda d: tuple(matrix for part in parts for matrix in part(d))


def shared_gate(d: Dimensions) -> tuple[Matrix, ...]:
    """Qwen2-MoE's weight of the shared expert."""
    return (Matrix("mlp.shared_expert_gate", 1, d.hidden, reads="mlp_input"),)
