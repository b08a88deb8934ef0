"""Context parallelism: each rank of a group holds two parts of every sequence, and gathers the others' keys and values.

Of twice as many parts as ranks the first rank holds the first and the last, the second rank the second and the last but
one, and so on: each then compares as many queries with keys. Attention is given to transformers as one more kind
(`NAME`), so that a model's own code runs unchanged; labels and positions are those of the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.attention.bias import CausalBias, causal_lower_right

NAME = "context_parallel"
"""What `attn_implementation` a model is built with under `cp`."""


def own_parts(whole: torch.Tensor, *, degree: int, index: int) -> torch.Tensor:
    """This rank's two parts, in order, of a tensor [batch, length] that is whole; the length is a multiple of twice
    `degree`."""
    if degree == 1:
        return whole
    parts = whole.chunk(2 * degree, 1)
    return torch.cat([parts[index], parts[-1 - index]], 1)


class Context:
    """Attention of one group of ranks, `mesh` (the axis `cp`)."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh, self._degree, self._index = mesh, mesh.size(), mesh.get_local_rank()
        count = 2 * self._degree
        self._parts = self._index, count - 1 - self._index  # of a sequence, this rank's
        held = [part for rank in range(self._degree) for part in (rank, count - 1 - rank)]
        self._order = [held.index(part) for part in range(count)]
        self._documents: torch.Tensor | None = None
        self._biases: dict[int, list[CausalBias]] = {}

    def register(self) -> None:
        """Makes `attn_implementation=NAME` one that transformers knows."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(NAME, self._attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, self._mask)

    def hear(self, documents_of: Callable[[torch.Tensor], torch.Tensor], position_ids: torch.Tensor) -> None:
        """Notes which documents the tokens of whole rows belong to, by this rank's positions [batch, length], before
        masks of them are made."""
        whole = self._whole(position_ids[:, None, :, None])
        self._documents = documents_of(whole[:, 0, :, 0])

    def _whole(self, mine: torch.Tensor) -> torch.Tensor:
        """[batch, heads, length, width] of whole sequences from every rank's parts; backward adds up their gradients
        and keeps this rank's."""
        halves = DTensor.from_local(torch.stack(mine.chunk(2, 2)), self._mesh, [Shard(0)], run_check=False)
        parts = halves.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]).unbind()
        return torch.cat([parts[at] for at in self._order], 2)

    def _mask(
        self, *, q_length: int, mask_function: Callable[..., torch.Tensor], device: torch.device, **given: Any
    ) -> torch.Tensor | None:
        """Which keys of the whole row each of this rank's queries sees, [batch or 1, 1, q_length, whole length]; None
        where those are all before it. `q_length` is that of this rank's parts."""
        length = q_length * self._degree
        if self._documents is None and (given.get("local_size") or length) >= length:
            # Made here: inside a block they are not, where selective recompute watches each operator.
            part = q_length // 2
            self._biases[part] = [causal_lower_right(part, (index + 1) * part) for index in self._parts]
            return None
        keys = torch.arange(length, device=device)
        queries = own_parts(keys[None], degree=self._degree, index=self._index)[0]
        first = keys[:1].view(1, 1, 1, 1)  # of rows and heads, which are alike
        seen = mask_function(first, first, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
        if self._documents is not None:
            seen = seen & (self._documents[:, None, queries, None] == self._documents[:, None, None, :])
        return seen

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        **_others: Any,
    ) -> tuple[torch.Tensor, None]:
        """From this rank's [batch, heads, length, width] to its result [batch, length, heads, width]."""
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        kind = query.device.type
        if torch.is_autocast_enabled(kind):  # which casts for operators of its own list only
            query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
        key, value = self._whole(torch.cat([key, value], -1)).split([key.shape[-1], value.shape[-1]], -1)
        length = query.shape[2] // 2
        made: list[torch.Tensor] = []
        for half, part in enumerate(self._parts):
            mine, until = slice(half * length, (half + 1) * length), (part + 1) * length
            inputs = query[:, :, mine], key[:, :, :until], value[:, :, :until]
            if mask is None:
                # Fewer heads of keys than of queries: flash attention reads them as they are.
                options: dict[str, Any] = {"scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
                bias = self._biases[length][half]
                found = F.scaled_dot_product_attention(*inputs, bias, dropout_p=dropout, **options).transpose(1, 2)
            else:
                seen = mask[:, :, mine, :until]
                found, _ = sdpa_attention_forward(module, *inputs, seen, dropout=dropout, scaling=scaling)
            made.append(found)
        return torch.cat(made, 1), None
