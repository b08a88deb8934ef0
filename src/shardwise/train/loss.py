"""The loss: the sum of token losses of one micro-batch, as the root module of everything that is trained.

A sum, because the division by the trained tokens of the whole global batch is the same on every layout only if nobody
divides earlier. The root, because sharding gathers the embedding and the head when the root is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwise.data.store import IGNORED
from shardwise.models.anatomy import Anatomy
from shardwise.spec.layout import CHUNK_TOKENS, LossKind
from shardwise.train.precision import Types


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The trained positions of a micro-batch.

    Attributes:
        positions: int64 [trained], indices into the flattened [batch * length].
        tokens: int64 [trained], the token each of them is to predict.
    """

    positions: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def of(cls, labels: torch.Tensor, *, device: torch.device) -> Targets:
        """From labels [batch, length] on the CPU, already shifted, -100 where nothing is trained.

        The indices are found before anything is on the GPU, so that the GPU need not be waited for.
        """
        flat = labels.flatten()
        positions = (flat != IGNORED).nonzero().squeeze(1)
        return cls(
            positions=positions.to(device, non_blocking=True),
            tokens=flat[positions].to(device, non_blocking=True),
        )


class LossModule(nn.Module):
    """A causal language model that returns its summed token loss in float32, a scalar."""

    def __init__(self, anatomy: Anatomy, *, types: Types, kind: LossKind) -> None:
        super().__init__()
        self.model = anatomy.model
        self._types = types
        self._chunked = kind == "chunked" and anatomy.plain_head
        if types.autocasts:
            anatomy.blocks[0].register_forward_pre_hook(self._cast_stream)

    def forward(
        self, *, input_ids: torch.Tensor, position_ids: torch.Tensor, targets: Targets | None = None
    ) -> torch.Tensor:
        """Sums the loss over the trained positions; without targets, returns all logits instead.

        Args:
            input_ids: [batch, length].
            position_ids: [batch, length]; they restart at 0 where a packed document begins, which is also what keeps
                documents apart in attention.
            targets: which positions are trained, and towards which token.
        """
        with torch.autocast(input_ids.device.type, dtype=self._types.compute, enabled=self._types.autocasts):
            if targets is not None and self._chunked:
                return self._chunked_loss(input_ids, position_ids, targets)
            logits = cast(Any, self.model)(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
            if targets is None:
                return logits
            return _token_losses(logits.flatten(0, 1).index_select(0, targets.positions), targets.tokens)

    def _chunked_loss(self, input_ids: torch.Tensor, position_ids: torch.Tensor, targets: Targets) -> torch.Tensor:
        """Only trained positions go through the head, a chunk at a time, computed again in backward."""
        model = cast(Any, self.model)
        backbone, head = getattr(model, model.base_model_prefix), model.get_output_embeddings()
        hidden = backbone(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
        hidden, labels = hidden.flatten(0, 1).index_select(0, targets.positions), targets.tokens
        if len(labels) <= CHUNK_TOKENS:
            return _token_losses(head(hidden), labels)
        chunks = zip(hidden.split(CHUNK_TOKENS), labels.split(CHUNK_TOKENS), strict=True)
        losses = [checkpoint(_head_loss, head, h, t, use_reentrant=False) for h, t in chunks]
        return torch.stack(cast(list[torch.Tensor], losses)).sum()

    def _cast_stream(self, _module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The residual stream is in the compute type under every layout; autocast does not reach embeddings."""
        return (inputs[0].to(self._types.compute), *inputs[1:])


def _head_loss(head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _token_losses(head(hidden), labels)


def _token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="sum")
