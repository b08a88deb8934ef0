"""What one compiled block works in during its backward, kernel by kernel, as torch's inductor writes them.

What it saves is in `activations.saved_bytes`.
"""

from __future__ import annotations

from shardwise.plan.work.activations import (
    BlockSetting,
    adapted_apart,
    attention_widths,
    block_input_bytes,
    ends_with_norm,
    keeps_input,
)
from shardwise.spec.layout.execution import Recompute
from shardwise.spec.model.shape import ModelShape


def fused_mlp_bytes(model: ModelShape, setting: BlockSetting, *, recompute: Recompute) -> float:
    """Bytes per token in the compiled kernel that makes the gradients inside an MLP.

    Without recompute these are what the first matrices made, their product, which is made again, and the gradients of
    both; where there is one first matrix, two of them are one tensor. Of adapters that PEFT's own code adds each brings
    one more: what flows back through it, or what flows to it, scaled.

    With recompute what the first matrices read is there too, the product for the last matrix is written as well, and
    only a sole factor's gradient is in place. Adapters that PEFT's own code adds bring their results and what flows
    back to them; and, unless norms read what matrices gave, two tensors of the stream's width: what the adapter behind
    attention gave, and, where nothing is saved, the gradient times the last adapter's scale. Of sums that one operator
    makes one such tensor was measured where nothing is saved; which it is was not read.

    All of it was seen in the code that torch's inductor writes.
    """
    c, factors = setting.types.compute, 2 if model.mlp == "gated" else 1
    apart = adapted_apart(model, setting)
    behind, first, last = (
        sum(m.reads == reads for m in apart) for reads in ("attention_output", "mlp_input", "mlp_product")
    )
    if recompute == "none":
        return (3 * factors + first + last) * model.mlp_width * c
    read = model.hidden_size * c
    needed = any(keeps_input(m, setting) for m in model.matrices if m.reads == "mlp_product")
    tensors = 2 * factors + 1 + 2 * first + last + needed - (factors == 1)
    beside = (0 if model.parallel_residual else behind) + (0 if recompute == "selective" else last)
    if recompute != "selective" and setting.inventory.adapted and not apart and not model.parallel_residual:
        beside = 1
    beside = 0 if ends_with_norm(model) else beside
    return tensors * model.mlp_width * c + read + beside * block_input_bytes(model, setting)


def compiled_attention_bytes(model: ModelShape, setting: BlockSetting, *, recompute: Recompute) -> float:
    """Bytes per token as a compiled block's backward comes to attention, above what it saved and one gradient of the
    stream: gradients of what its matrices and norms gave, of queries, keys and values, and results of adapters that
    were made again, or, where one operator sums products, one gradient less. On a processor packed rows go document by
    document, and their gradients are then put together."""
    again, apart = recompute != "none", adapted_apart(model, setting)
    made = sum(m.rows for m in apart if m.reads == "attention_input") if again else 0
    times = 2 if setting.attention == "varlen" and not setting.cuda else 1
    given = 2 if again and setting.inventory.adapted and not apart else 3
    return (given * model.hidden_size + times * sum(attention_widths(model)) + made) * setting.types.compute


def compiled_end_bytes(model: ModelShape, setting: BlockSetting) -> float:
    """Bytes per token in the last kernel of a compiled block's backward, that of the first norm: the block's input, the
    gradient that came past the matrices, and what each of these made of its own. Seen in inductor's code."""
    reads = ("attention_input", "mlp_input") if model.parallel_residual else ("attention_input",)
    return (2 + sum(m.reads in reads for m in model.matrices)) * block_input_bytes(model, setting)
