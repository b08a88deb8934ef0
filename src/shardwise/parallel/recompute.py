"""Activation checkpointing, per block.

Non-reentrant, because the reentrant kind needs inputs that require gradients, which frozen
embeddings do not give. It wraps `forward`, so that parameters keep their names and weights are
gathered before recomputation.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import local
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shardwise.spec.layout.execution import Recompute

_aten = torch.ops.aten

#: What selective checkpointing saves, beside the products that `_policy` names: attention, and what
#: collectives brought from other ranks, as torchtitan does.
_SAVED = {
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}
_PRODUCTS = {_aten.mm.default, _aten.addmm.default}


def apply_recompute(blocks: Iterable[nn.Module], kind: Recompute) -> None:
    """Makes each block save only its inputs, or if `selective` also some products and attention."""
    for block in blocks if kind != "none" else ():
        block.forward = partial(_full if kind == "full" else _selective, block.forward)


_now = local()


def is_again() -> bool:
    """Whether this thread computes a block again, for its backward."""
    return getattr(_now, "again", False)


@contextmanager
def _again() -> Iterator[None]:
    before, _now.again = is_again(), True
    try:
        yield
    finally:
        _now.again = before


def _full(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():  # which takes contexts that choose operators, and no others
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), _again()), **kwargs)


def _selective(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(_context: Any, op: Any, *args: Any, **_: Any) -> CheckpointPolicy:
    """Saves attention, and products that make a row no wider than they read: of a Llama all but
    gate and up, which have most bytes, and save least time for each."""
    if op.namespace == "shardwise":  # a sum of products (`methods/lora_products.py`), the first by the frozen matrix
        is_saved = _narrows(args[1][0])
    elif op in _PRODUCTS:
        is_saved = _narrows(args[-1])
    else:
        is_saved = op in _SAVED or op.namespace == "torch_attn"  # varlen_attn, which is imported where it is used
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def _narrows(right: torch.Tensor) -> bool:
    width, made = right.shape
    # Bytes kept grow with what a product makes, seconds saved with what it reads as well.
    return bool(made <= width)
