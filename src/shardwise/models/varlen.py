"""Attention of packed or joined rows: each document alone, by torch's `varlen_attn`, without mask.

On GPUs that is FlashAttention over all documents at once. For processors torch has no kernel behind
it, so one is added here: PyTorch's attention, one document after another. All else is the same code
on both.
"""

from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any, cast

import torch
from torch.nn.attention.varlen import varlen_attn

#: torch 2.11 takes fewer heads of keys than of queries without being told.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
_CAUSAL = (-1, 0)
_aten = torch.ops.aten


def register() -> None:
    """Registers `attn_implementation="varlen"` with transformers. Without an entry in its masks
    none is made, and positions are not searched for documents, which would wait for the GPU."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("varlen", _attend)


def _attend(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    scaling: float | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """From [batch, heads, length, width], rows concatenated, to [batch, length, heads, width]."""
    batch, _, length, _ = query.shape
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # which casts for operators of its own list only
        query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    ends, longest = cu_seq_lens_q, max_length_q
    made = varlen_attn(query, key, value, ends, ends, longest, longest, scale=scaling, window_size=_CAUSAL, **_GROUPED)
    return cast(torch.Tensor, made).unflatten(0, (batch, length)), None


def _forward(*given: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result [tokens, heads, width], its log-sum-exp [heads, tokens], unused dropout state."""
    query, key, value, ends, _, _, _, causal, scale, *_ = given
    kernel = _aten._scaled_dot_product_flash_attention_for_cpu
    made, sums = zip(*(kernel(*one, 0.0, causal, scale=scale) for one in _each(ends, query, key, value)), strict=True)
    return _joined(made), _joined(sums).mT.contiguous(), torch.zeros(2, dtype=torch.uint64)


def _backward(*given: Any) -> tuple[torch.Tensor, ...]:
    gradient, query, key, value, made, sums, ends, _, _, _, causal, _, scale, *_ = given
    kernel = _aten._scaled_dot_product_flash_attention_for_cpu_backward
    each = _each(ends, gradient, query, key, value, made, sums.mT)
    return tuple(_joined(of) for of in zip(*(kernel(*one, 0.0, causal, scale=scale) for one in each), strict=True))


def _each(ends: torch.Tensor, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Of each document, [tokens, heads, ...] as [1, heads, its tokens, ...]."""
    lengths = ends.diff().tolist()
    return zip(*(tensor.transpose(0, 1).unsqueeze(0).split(lengths, 2) for tensor in tensors), strict=True)


def _joined(documents: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([document.squeeze(0).transpose(0, 1) for document in documents])


_kernels = torch.library.Library("torch_attn", "IMPL")
_kernels.impl("_varlen_attn", _forward, "CPU")
_kernels.impl("_varlen_attn_backward", _backward, "CPU")
