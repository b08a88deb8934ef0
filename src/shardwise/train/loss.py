"""The loss: the sum of token losses of one micro-batch, as the root module of everything that is trained.

A stage of a pipeline is the same module around its part of the model: hidden states go in where token ids do not, and
come out where there is no head to make a loss with.

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
from shardwise.spec.execution import CHUNK_TOKENS, LossKind
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
    """A causal language model that returns its summed token loss in float32, a scalar.

    Args:
        anatomy: of the model, or of what a stage keeps of it.
        first_block: through which the residual stream enters.
        makes_loss: the head is here; otherwise hidden states are returned.
    """

    def __init__(
        self, anatomy: Anatomy, *, types: Types, kind: LossKind, first_block: int = 0, makes_loss: bool = True
    ) -> None:
        super().__init__()
        self.model = anatomy.model
        self._makes_loss = makes_loss
        self._types = types
        self._chunked = kind == "chunked" and anatomy.plain_head
        if types.autocasts:
            anatomy.blocks[first_block].register_forward_pre_hook(self._cast_stream)

    def forward(
        self,
        *,
        position_ids: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        hidden: torch.Tensor | None = None,
        targets: Targets | None = None,
    ) -> torch.Tensor:
        """Sums the loss over the trained positions; a stage that makes no loss returns hidden states.

        Args:
            position_ids: [batch, length]; they restart at 0 where a packed document begins, which is also what keeps
                documents apart in attention.
            input_ids: [batch, length]; None where `hidden` is given.
            hidden: [batch, length, width], what the stage before this one returned.
            targets: which positions are trained, and towards which token.
        """
        inputs = {"input_ids": input_ids} if hidden is None else {"inputs_embeds": hidden}
        inputs["position_ids"] = position_ids
        with torch.autocast(position_ids.device.type, dtype=self._types.compute, enabled=self._types.autocasts):
            if targets is None or not self._makes_loss:
                return self._hidden(inputs)
            if self._chunked:
                return self._chunked_loss(inputs, targets)
            logits = cast(Any, self.model)(**inputs, use_cache=False).logits
            return _token_losses(logits.flatten(0, 1).index_select(0, targets.positions), targets.tokens)

    def _hidden(self, inputs: dict[str, Any]) -> torch.Tensor:
        model = cast(Any, self.model)
        return getattr(model, model.base_model_prefix)(**inputs, use_cache=False).last_hidden_state

    def _chunked_loss(self, inputs: dict[str, Any], targets: Targets) -> torch.Tensor:
        """Only trained positions go through the head, a chunk at a time, computed again in backward.

        What is kept depends on the size of the micro-batch and not on how much of it is trained: of a pipeline's
        micro-batches in flight, each would keep its one chunk beside activations of many.
        """
        head = cast(Any, self.model).get_output_embeddings()
        hidden, labels = self._hidden(inputs).flatten(0, 1).index_select(0, targets.positions), targets.tokens
        if inputs["position_ids"].numel() <= CHUNK_TOKENS:
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
