"""Model FLOPs of a token: the one formula behind every MFU, forecast or measured.

Chowdhery et al., "PaLM" (2022), appendix B: 6 FLOPs per matrix parameter (2 forward, 2 for the gradient of inputs, 2
for the gradient of weights) and 12 * layers * width * length for attention, recompute not counted. Frozen matrices
need no weight gradient, so LoRA costs 4 per frozen matrix parameter and 6 per adapter parameter, and per parameter of
a matrix that is trained as a copy (`modules_to_save`), which runs in the place of its original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shardwise.spec.job import LoraSpec
from shardwise.spec.model import Matrix, ModelShape
from shardwise.spec.saved_names import is_saved
from shardwise.spec.targets import adapter_rank, hold_of, is_copied


def matrix_parameters(shape: ModelShape) -> int:
    """Elements of all matrices a token is multiplied with: blocks and head (tied or not), not the embedding lookup.

    Of experts, those that a token is routed to.
    """
    blocks = sum(
        kind.num_layers * matrix.routed * matrix.rows * matrix.columns
        for kind in shape.kinds
        for matrix in kind.matrices
    )
    outer = sum(matrix.num_parameters for matrix in shape.outer_matrices)
    return blocks + outer + shape.embedding_parameters


def adapter_parameters(shape: ModelShape, lora: LoraSpec) -> int:
    """Elements of all LoRA adapters: r * (rows + columns) for each target matrix (Hu et al., 2021, section 4)."""
    return _adapters(shape, lora, lambda matrix: matrix.count)


def _adapters(shape: ModelShape, lora: LoraSpec, experts: Callable[[Matrix], int]) -> int:
    """Elements of adapters, of so many of each matrix."""

    def of(matrices: Iterable[Matrix]) -> int:
        held = (matrix for matrix in matrices if hold_of(matrix, lora, shape))
        return sum(experts(m) * adapter_rank(m, lora, shape) * (m.rows + m.columns) for m in held)

    return of(shape.outer_matrices) + sum(kind.num_layers * of(kind.matrices) for kind in shape.kinds)


def copied_parameters(shape: ModelShape, lora: LoraSpec) -> int:
    """Elements of the matrices that are trained as whole copies: of the blocks, and the head."""
    head = shape.embedding_parameters if is_saved(shape.names.head, lora) else 0
    return head + sum(
        kind.num_layers * matrix.routed * matrix.rows * matrix.columns
        for kind in shape.kinds
        for matrix in kind.matrices
        if is_copied(matrix.name, lora.modules_to_save)
    )


def model_flops_per_token(shape: ModelShape, *, length: float, lora: LoraSpec | None) -> float:
    """FLOPs of one token, forward and backward.

    Args:
        shape: the model.
        length: mean tokens a sequence has, which attention reaches over.
        lora: adapters, or None where everything is trained.
    """
    widths = shape.head_dim + (shape.value_head_dim or shape.head_dim)
    attention = 6 * shape.num_layers * shape.num_attention_heads * widths * length
    if lora is None:
        return 6 * matrix_parameters(shape) + attention
    adapters = _adapters(shape, lora, lambda matrix: matrix.routed)
    trained = 2 * copied_parameters(shape, lora) + 6 * adapters
    return 4 * matrix_parameters(shape) + trained + attention
