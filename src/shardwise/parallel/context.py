"""Context parallelism: each rank holds two parts of every sequence, and gathers keys and values.

Of twice as many parts as ranks the first rank holds the first and the last, the second rank the
second and the last but one, and so on: each then compares as many queries with keys. Attention is
given to transformers as one more kind (`NAME`), so that a model's own code runs unchanged; labels
and positions are those of the whole row.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch.distributed.device_mesh import DeviceMesh

from shardwise.errors import UnsupportedError
from shardwise.parallel.context_attention import RowParts, attend
from shardwise.parallel.mesh import World
from shardwise.spec.layout.execution import Execution

#: What `attn_implementation` a model is built with that is trained on parts of rows.
NAME = "context_parallel"


def attention_of(execution: Execution) -> str:
    """transformers' name of the kernel that a model is built with."""
    return NAME if execution.layout.splits_rows else execution.attn_implementation


def own_parts(whole: torch.Tensor, *, degree: int, index: int) -> torch.Tensor:
    """This rank's two parts of a whole tensor [batch, length], a multiple of 2 `degree` long."""
    parts = whole.chunk(2 * degree, 1)
    return torch.cat([parts[index], parts[-1 - index]], 1)


def taking_parts(world: World) -> Callable[[torch.Tensor], torch.Tensor]:
    """What takes this rank's parts out of a whole tensor [batch, length]."""
    ranks = world.row_group
    return partial(own_parts, degree=ranks.size(), index=ranks.rank()) if ranks is not None else lambda whole: whole


class Context:
    """Attention of one group of ranks, `mesh` (the axis `cp`)."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._parts = RowParts(group=mesh.get_group(), degree=mesh.size(), index=mesh.get_local_rank())
        self._documents: torch.Tensor | None = None

    @classmethod
    def registered(cls, world: World) -> Self | None:
        """That of this rank's peers, which transformers knows; None where rows are whole."""
        if world.row_group is None:
            return None
        made = cls(world.mesh["cp"])
        made.register()
        return made

    def register(self) -> None:
        """Makes `attn_implementation=NAME` one that transformers knows."""
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS.register(NAME, self._attend)  # pyright: ignore[reportAttributeAccessIssue]
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, self._mask)

    def hear(self, documents_of: Callable[[torch.Tensor], torch.Tensor], position_ids: torch.Tensor) -> None:
        """Notes the documents of whole rows, by this rank's positions, before masks are made."""
        whole = self._parts.whole(position_ids[:, None, :, None])
        self._documents = documents_of(whole[:, 0, :, 0])

    def _mask(
        self, *, q_length: int, mask_function: Callable[..., torch.Tensor], device: torch.device, **given: Any
    ) -> torch.Tensor | None:
        """Which keys of the whole row each of this rank's queries sees, [batch or 1, 1, q_length,
        whole length]; None if they are all before it. `q_length`: that of this rank's parts."""
        length = q_length * self._parts.degree
        if self._documents is None and (given.get("local_size") or length) >= length:
            return None
        keys = torch.arange(length, device=device)
        queries = own_parts(keys[None], degree=self._parts.degree, index=self._parts.index)[0]
        first = keys[:1].view(1, 1, 1, 1)  # of rows and heads, which are alike
        seen = mask_function(first, first, queries.view(1, 1, -1, 1), keys.view(1, 1, 1, -1))
        if self._documents is not None:
            seen = seen & (self._documents[:, None, queries, None] == self._documents[:, None, None, :])
        return seen

    @torch.compiler.disable
    def _attend(
        self,
        _module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        **_others: Any,
    ) -> tuple[torch.Tensor, None]:
        """From this rank's [batch, heads, length, width] to its result [batch, length, heads,
        width]. Raises UnsupportedError: scores are dropped at random."""
        if dropout:
            raise UnsupportedError("attention drops scores at random, which is not trained with cp; set dropout to 0")
        kind = query.device.type
        if torch.is_autocast_enabled(kind):  # which casts for operators of its own list only
            query, key, value = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (query, key, value))
        return attend(query, key, value, mask, parts=self._parts, scale=scaling), None
