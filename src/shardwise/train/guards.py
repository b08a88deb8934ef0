"""What must hold while training, checked always: ranks agree, what was asked is what runs, numbers stay finite.

These are the bugs that look like runs: N ranks that train N models, a layout that silently became another one, a
gradient that became NaN and was stepped on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.errors import ShardwiseError
from shardwise.parallel.mesh import World

T = TypeVar("T")


class GuardError(ShardwiseError):
    """Something that must hold does not; training stopped before it could do harm."""


def gather(world: World, value: T) -> list[T]:
    """One small object of every rank, by rank."""
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value, group=world.control)
    return values


def agree(world: World, facts: dict[str, Any]) -> None:
    """Stops the run where ranks do not share a fact (job, data fingerprint, versions, layout).

    Raises:
        GuardError: names the first fact that differs and the rank it differs on.
    """
    for rank, theirs in enumerate(gather(world, facts)):
        for name, mine in facts.items():
            if theirs.get(name) != mine:
                raise GuardError(
                    f"rank {rank} has {name} = {theirs.get(name)!r} and rank {world.rank} has {mine!r}; "
                    "all ranks must start from the same job, data and versions"
                )


def replicated_digest(parameters: Iterable[tuple[str, nn.Parameter]], *, trainable_only: bool) -> str:
    """A hash of the bytes this rank holds of every parameter."""
    digest = hashlib.sha256()
    for name, parameter in parameters:
        if trainable_only and not parameter.requires_grad:
            continue
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        digest.update(name.encode())
        digest.update(local.detach().contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


def check_replicas(world: World, parameters: list[tuple[str, nn.Parameter]], *, when: str) -> None:
    """Ranks that hold the same shard must hold the same bytes.

    Raises:
        GuardError: two replicas differ.
    """
    if world.layout.dp_replicate == 1:
        return
    mine = replicated_digest(parameters, trainable_only=True)
    digests = gather(world, mine)
    for rank, digest in enumerate(digests):
        if _shard_of(world, rank) == _shard_of(world, world.rank) and digest != mine:
            raise GuardError(
                f"{when}: rank {rank} and rank {world.rank} hold different trained weights, though they are replicas; "
                "the run was stopped because each would train its own model"
            )


def _shard_of(world: World, rank: int) -> tuple[int, ...]:
    at = world.layout.coordinates(rank)
    return (at.pp, at.dp_shard, at.cp, at.tp)


def check_layout(world: World, parameters: list[tuple[str, nn.Parameter]]) -> None:
    """Reads the layout back from live tensors: this rank must hold its share of the weights and no more.

    Raises:
        GuardError: more or fewer elements are held than the layout says.
    """
    held = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for _, p in parameters)
    whole = sum(p.numel() for _, p in parameters)
    shards = world.layout.dp_shard if world.layout.zero_stage > 1 else 1
    # Dim-0 chunks are uneven by at most one row-block per parameter.
    slack = sum(math.ceil(p.shape[0] / shards) * math.prod(p.shape[1:]) for _, p in parameters if p.ndim)
    if held > max(slack, math.ceil(whole / shards)) or (shards == 1 and held != whole):
        raise GuardError(
            f"rank {world.rank} holds {held} weight elements; the layout {world.layout.strategy} gives it "
            f"at most {slack} of {whole}. What was asked is not what runs"
        )


def check_finite(world: World, *, step: int, loss: float, norm: float, bad_sample: Any, where: Any) -> None:
    """Stops before the optimizer step, weights untouched, if the loss or the gradient norm is not finite.

    Args:
        bad_sample: called on failure only; gives a sample id of this rank or None.
        where: sample id -> `file:line`.

    Raises:
        GuardError: names step, rank and sample.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        return
    samples = gather(world, bad_sample())
    culprit = next(((rank, sample) for rank, sample in enumerate(samples) if sample is not None), None)
    source = f" on rank {culprit[0]} in the sample from {where(culprit[1])}" if culprit else ""
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
    raise GuardError(
        f"step {step}: {what}{source}. The weights are those of step {step - 1}; "
        "lower train.learning_rate, or look at that row"
    )
