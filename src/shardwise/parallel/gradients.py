"""What is left to do to gradients when the last backward is done, where neither DDP nor FSDP has done it.

In this order: partial sums over tensor-parallel ranks become whole, the two copies of a tied weight at the pipeline's
ends are added, and replicas are added. Every one is a sum: the loss was divided by the tokens of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from shardwise.parallel.ownership import local_part
from shardwise.parallel.slices import settle_gradients

#: Gradients are sent together up to so many bytes: fewer messages, and no second copy of everything.
BUCKET_BYTES = 25 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Called after the last backward of a step; composed once, when the model is spread.

    Attributes:
        trained: the parameters whose gradients are meant.
        tied: those of them that another stage holds a copy of.
        ends: the two ranks that hold the copies; None on ranks and layouts without.
        replicas: ranks whose gradients nobody else adds up; None where DDP or FSDP does.
    """

    trained: tuple[nn.Parameter, ...]
    tied: tuple[nn.Parameter, ...] = ()
    ends: dist.ProcessGroup | None = None
    replicas: dist.ProcessGroup | None = None

    def __call__(self) -> None:
        """Makes every gradient that of the whole global batch."""
        settle_gradients(self.trained)
        if self.ends is not None and self.tied:
            add_over(self.ends, self.tied)
        if self.replicas is not None:
            add_over(self.replicas, self.trained)


def add_over(group: dist.ProcessGroup, parameters: Sequence[nn.Parameter]) -> None:
    """Adds gradients over a group, in place; a parameter without one counts as zero."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for bucket in _buckets([local_part(p.grad) for p in parameters if p.grad is not None]):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        dist.all_reduce(flat, group=group)
        for gradient, summed in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def _buckets(gradients: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Neighbours of one type, as many as fit."""
    held: list[torch.Tensor] = []
    for gradient in gradients:
        full = sum(g.nbytes for g in held) + gradient.nbytes > BUCKET_BYTES
        if held and (full or gradient.dtype != held[0].dtype):
            yield held
            held = []
        held.append(gradient)
    if held:
        yield held
