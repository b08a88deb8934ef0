"""Model FLOPs of one token, as the planner forecasts them and the trainer's MFU counts them: one formula for both.

A matrix product of m x k and k x n takes 2mnk FLOPs. Forward does one per weight element, backward one for the input's
gradient and, where the weight is trained, one for its own: 6N for full fine-tuning, 4N plus 6 per adapter element for
LoRA (Kaplan et al., 2020, for 6N). Recomputation is not model work and is not counted.
"""

from __future__ import annotations

from shardwise.spec.model import ModelShape


def matrix_parameters(model: ModelShape) -> int:
    """Elements that every token is multiplied with: the blocks' matrices and the head, but no table of embeddings."""
    block = sum(matrix.count * matrix.rows * matrix.columns for matrix in model.matrices)
    return model.num_layers * block + model.vocab_size * model.hidden_size


def attention_flops_per_token(model: ModelShape, *, length: int) -> float:
    """Forward FLOPs of scores and their product with the values, averaged over a causal sequence of `length` tokens."""
    seen = min(length, model.sliding_window or length)
    average = seen - seen * (seen - 1) / (2 * length)
    return 4 * average * model.num_attention_heads * model.head_dim * model.num_layers


def model_flops_per_token(model: ModelShape, *, length: int, adapter_parameters: int | None = None) -> float:
    """Forward and backward FLOPs of one token.

    Args:
        model: the model.
        length: tokens of a sequence, for attention.
        adapter_parameters: elements of the adapters where only they are trained; None for full fine-tuning.
    """
    matrices = matrix_parameters(model)
    attention = 3 * attention_flops_per_token(model, length=length)
    if adapter_parameters is None:
        return 6 * matrices + attention
    return 4 * matrices + 6 * adapter_parameters + attention
