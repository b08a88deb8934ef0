"""The root module: a model, or a pipeline stage of it, that returns the summed token loss of a micro-batch.

A sum, because the loss is divided by the trained tokens of the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardwise.data.deal import Documents
from shardwise.data.store import IGNORED
from shardwise.models.anatomy import Anatomy
from shardwise.spec.layout.execution import CHUNK_TOKENS, LossKind
from shardwise.spec.support.attention import BY_DOCUMENT
from shardwise.train.precision import Types, cast_activations


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
        """From labels [batch, length] on the CPU, shifted, -100 where nothing is trained; without a GPU
        synchronisation."""
        flat = labels.flatten()
        positions = (flat != IGNORED).nonzero().squeeze(1)
        return cls(
            positions=positions.to(device, non_blocking=True),
            tokens=flat[positions].to(device, non_blocking=True),
        )


class LossModule(nn.Module):
    """A causal language model that returns its summed token loss in float32, a scalar.

    Args:
        first_block: index of the first block of this stage.
        makes_loss: the head is here; otherwise hidden states are returned.
    """

    def __init__(
        self, anatomy: Anatomy, *, types: Types, kind: LossKind, first_block: int = 0, makes_loss: bool = True
    ) -> None:
        super().__init__()
        self.model = anatomy.model
        self._makes_loss = makes_loss
        self._told_documents = cast(Any, anatomy.model).config._attn_implementation in BY_DOCUMENT
        self._types = types
        self.head_loss = HeadLoss(anatomy.head, kind=kind) if makes_loss and anatomy.plain_head else None
        if types.autocasts:
            cast_activations(anatomy, first_block=first_block, dtype=types.compute)

    def forward(
        self,
        *,
        position_ids: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        hidden: torch.Tensor | None = None,
        targets: Targets | None = None,
        documents: Documents | None = None,
    ) -> torch.Tensor:
        """Sums the loss over the trained positions; a stage without the head returns hidden states.

        Args:
            position_ids: [batch, length]; they restart at 0 where a packed document begins, which also separates
                documents in attention.
            input_ids: [batch, length]; None where `hidden` is given.
            hidden: [batch, length, width], from the stage before.
            targets: trained positions and their tokens.
            documents: where packed documents lie, for a kernel that is told.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids} if hidden is None else {"inputs_embeds": hidden}
        inputs["position_ids"] = position_ids
        if documents is not None and self._told_documents:
            inputs |= documents.words
        with torch.autocast(position_ids.device.type, dtype=self._types.compute, enabled=self._types.autocasts):
            if targets is None or not self._makes_loss:
                return self._hidden(inputs)
            if self.head_loss is not None:
                return self.head_loss(self._hidden(inputs), targets.positions, targets.tokens)
            logits = cast(Any, self.model)(**inputs, use_cache=False).logits
            return _token_losses(logits.flatten(0, 1).index_select(0, targets.positions), targets.tokens)

    def _hidden(self, inputs: dict[str, Any]) -> torch.Tensor:
        model = cast(Any, self.model)
        return getattr(model, model.base_model_prefix)(**inputs, use_cache=False).last_hidden_state


class HeadLoss(nn.Module):
    """The head and its summed loss. One call a micro-batch, however often it calls the head: FSDP gathers the head's
    weight for this module, and reduces its gradient when the backward of this module is done."""

    def __init__(self, head: nn.Module, *, kind: LossKind) -> None:
        super().__init__()
        self.head = head
        self._chunked = kind == "chunked"

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Of hidden states [batch, length, width], `Targets.positions` of them and `Targets.tokens`.

        Chunks of positions are computed again in backward. A micro-batch of at most one keeps its logits, however many
        of its positions are trained.
        """
        rows = hidden.flatten(0, 1)
        if not self._chunked:
            return _token_losses(self.head(rows).index_select(0, positions), tokens)
        trained = rows.index_select(0, positions)
        if len(rows) <= CHUNK_TOKENS:
            return _token_losses(self.head(trained), tokens)
        chunks = zip(trained.split(CHUNK_TOKENS), tokens.split(CHUNK_TOKENS), strict=True)
        losses = [checkpoint(_head_loss, self.head, h, t, use_reentrant=False) for h, t in chunks]
        return torch.stack(cast(list[torch.Tensor], losses)).sum()


def _head_loss(head: nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return _token_losses(head(hidden), labels)


def _token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="sum")
