"""Model FLOPs per token, which every MFU, forecast or measured, is computed from.

Chowdhery et al., "PaLM" (2022), appendix B: 6 FLOPs per matrix parameter (2 forward, 4 backward)
and 12 * layers * width * length for attention, without recompute. Frozen matrices need no weight
gradient: LoRA costs 4 per frozen parameter, and 6 per parameter of an adapter or of a trained copy
(`modules_to_save`).
"""

from collections.abc import Iterable

from shardwise.spec.adapters.targets import adapter_rank, hold_of, is_copied, is_saved
from shardwise.spec.job.keys import LoraSpec
from shardwise.spec.model.shape import Matrix, ModelShape


def matrix_parameters(shape: ModelShape) -> int:
    """Elements of matrices a token is multiplied with: blocks (of experts, the routed) and head."""
    outer = sum(matrix.num_parameters for matrix in shape.outer_matrices)
    return shape.multiplied_elements + outer + shape.embedding_parameters


def adapter_parameters(shape: ModelShape, lora: LoraSpec) -> int:
    """Elements of the LoRA adapters that a token is multiplied with (of experts, those routed to):
    r * (rows + columns) for each target matrix (Hu et al., 2021, section 4)."""

    def of(matrices: Iterable[Matrix]) -> int:
        held = (matrix for matrix in matrices if hold_of(matrix, lora, shape))
        return sum(m.routed * adapter_rank(m, lora, shape) * (m.rows + m.columns) for m in held)

    return of(shape.outer_matrices) + sum(kind.num_layers * of(kind.matrices) for kind in shape.kinds)


def copied_parameters(shape: ModelShape, lora: LoraSpec) -> int:
    """Elements of the matrices that are trained as whole copies: of the blocks, and the head."""
    head = shape.embedding_parameters if is_saved(shape.names.head, lora) else 0
    copied = [(blocks, m) for blocks, m in shape.every_matrix if is_copied(m.name, lora.modules_to_save)]
    return head + sum(blocks * m.routed * m.rows * m.columns for blocks, m in copied)


def model_flops_per_token(shape: ModelShape, *, length: float, lora: LoraSpec | None) -> float:
    """FLOPs of one token, forward and backward, in sequences of `length` tokens on average."""
    widths = shape.head_dim + (shape.value_head_dim or shape.head_dim)
    attention = 6 * shape.num_layers * shape.num_attention_heads * widths * length
    if lora is None:
        return 6 * matrix_parameters(shape) + attention
    trained = 2 * copied_parameters(shape, lora) + 6 * adapter_parameters(shape, lora)
    return 4 * matrix_parameters(shape) + trained + attention
