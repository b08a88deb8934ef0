"""All-reduces many tensors in few flat messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist

from shardwise.spec.layout.execution import FLAT_BYTES


@torch.no_grad()
def sum_over(group: dist.ProcessGroup, tensors: Sequence[torch.Tensor]) -> None:
    """All-reduces plain tensors in place, those of one dtype in flat messages of `FLAT_BYTES`; a larger one alone."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat, group=group)
        sums = flat.split([tensor.numel() for tensor in bucket])
        torch._foreach_copy_(bucket, [one.view_as(tensor) for one, tensor in zip(sums, bucket, strict=True)])  # pyright: ignore[reportPrivateImportUsage]


def _buckets(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Consecutive tensors of one dtype, as many as fit."""
    held: list[torch.Tensor] = []
    for tensor in tensors:
        full = sum(one.nbytes for one in held) + tensor.nbytes > FLAT_BYTES
        if held and (full or tensor.dtype != held[0].dtype):
            yield held
            held = []
        held.append(tensor)
    if held:
        yield held
