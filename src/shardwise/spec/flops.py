"""Model FLOPs of a token: the one formula behind every MFU, forecast or measured.

Chowdhery et al., "PaLM" (2022), appendix B: 6 FLOPs per matrix parameter (2 forward, 2 for the gradient of inputs, 2
for the gradient of weights) and 12 * layers * width * length for attention, recompute not counted. Frozen matrices
need no weight gradient, so LoRA costs 4 per frozen matrix parameter and 6 per adapter parameter, and per parameter of
a matrix that is trained as a copy (`modules_to_save`), which runs in the place of its original.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardwise.spec.job import LoraSpec
from shardwise.spec.model import Matrix, ModelShape


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


#: What transformers' models call their head.
HEAD_NAMES = frozenset({"lm_head", "embed_out"})


def is_target(matrix: Matrix, lora: LoraSpec) -> bool:
    """Whether an adapter hangs on a matrix, by PEFT's rule: `all-linear`, or the end of its name; not on copies."""
    if not matrix.adaptable or is_copied(matrix.name, lora.modules_to_save):
        return False
    if lora.target_modules == "all-linear":
        return True
    return any(matrix.name == name or matrix.name.endswith(f".{name}") for name in lora.target_modules)


def is_copied(name: str, saved: Sequence[str]) -> bool:
    """Whether a part of a block is trained as a whole copy, by PEFT's rule: the end of its module's name, or of a
    module's around it, is one of `modules_to_save`."""
    parts = name.split(".")
    around = (".".join(parts[: count + 1]) for count in range(len(parts)))
    return any(module.endswith(end) for module in around for end in saved)


def adapter_parameters(shape: ModelShape, lora: LoraSpec) -> int:
    """Elements of all LoRA adapters: r * (rows + columns) for each target matrix (Hu et al., 2021, section 4)."""
    outer = (m for m in shape.outer_matrices if is_target(m, lora))
    return sum(lora.r * (m.rows + m.columns) for m in outer) + sum(
        kind.num_layers * m.count * lora.r * (m.rows + m.columns)
        for kind in shape.kinds
        for m in kind.matrices
        if is_target(m, lora)
    )


def copied_parameters(shape: ModelShape, lora: LoraSpec) -> int:
    """Elements of the matrices that are trained as whole copies: of the blocks, and the head."""
    head = shape.embedding_parameters if HEAD_NAMES & set(lora.modules_to_save) else 0
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
    trained = 2 * copied_parameters(shape, lora) + 6 * adapter_parameters(shape, lora)
    return 4 * matrix_parameters(shape) + trained + attention
