"""What must hold while training, checked always: ranks agree, what was asked is what runs, numbers stay finite.

These are the bugs that look like runs: N ranks that train N models, a layout that silently became another one, a
gradient that became NaN and was stepped on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.data.batches import GlobalBatch
from shardwise.errors import ShardwiseError
from shardwise.parallel.mesh import World
from shardwise.spec.layout import rows_of_shard

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


_WHOLE_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksums(parameters: Iterable[tuple[str, nn.Parameter]]) -> tuple[int, ...]:
    """One sum over the bits of each trained parameter that this rank holds, taken on its device.

    Replicas that are alike have like sums; one differing bit changes a sum. Nothing is copied off the device but the
    sums, so that it can be done often.
    """
    sums: list[torch.Tensor] = []
    for _, parameter in parameters:
        if not parameter.requires_grad:
            continue
        local = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach()
        bits = local.contiguous().flatten().view(_WHOLE_TYPES[local.element_size()])
        sums.append(bits.sum(dtype=torch.int64))
    return tuple(torch.stack(sums).tolist()) if sums else ()


def check_replicas(world: World, parameters: list[tuple[str, nn.Parameter]], *, when: str) -> None:
    """Ranks that hold the same shard must hold the same bytes.

    Raises:
        GuardError: two replicas differ.
    """
    if world.layout.data_world_size == world.layout.weight_shards:
        return
    mine = checksums(parameters)
    for rank, theirs in enumerate(gather(world, mine)):
        if _shard_of(world, rank) == _shard_of(world, world.rank) and theirs != mine:
            raise GuardError(
                f"{when}: rank {rank} and rank {world.rank} hold different trained weights, though they are replicas; "
                "the run was stopped because each would train its own model"
            )


def _shard_of(world: World, rank: int) -> tuple[int, ...]:
    at = world.layout.coordinates(rank)
    return (at.pp, 0 if world.layout.shards_states_only else at.dp_shard, at.cp, at.tp)


def check_layout(world: World, parameters: list[tuple[str, nn.Parameter]]) -> None:
    """Reads the layout back from live tensors: this rank must hold its rows of every weight, no more and no fewer.

    Raises:
        GuardError: names the first weight of which this rank holds something else.
    """
    for name, parameter in parameters:
        _check_rows(world, name, parameter, degree=world.layout.weight_shards)


def _check_rows(world: World, name: str, tensor: torch.Tensor, *, degree: int) -> None:
    """The rows of a tensor that this rank holds must be those of its place among `degree` shards."""
    layout = world.layout
    index = layout.coordinates(world.rank).dp_shard if degree > 1 else 0
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    rows = rows_of_shard(tensor.shape[0], degree=degree, index=index)
    if local.numel() != rows * math.prod(tensor.shape[1:]):
        raise GuardError(
            f"rank {world.rank} holds {local.numel()} of the {tensor.numel()} elements of {name}; the layout "
            f"{layout.strategy} gives it {rows} of {tensor.shape[0]} rows. What was asked is not what runs"
        )


def read_back_states(optimizer: torch.optim.Optimizer, world: World, stepped: list[tuple[str, nn.Parameter]]) -> None:
    """After the first step, once: every optimizer state must cover this rank's rows, no more and no fewer.

    States exist only then; a state that is whole where it should be sharded would cost memory and nothing else.

    Raises:
        GuardError: in that step, before anything is saved; names the first state that covers something else.
    """

    def check(*_: Any) -> None:
        handle.remove()
        for name, parameter in stepped:
            for key, state in optimizer.state.get(parameter, {}).items():
                if isinstance(state, torch.Tensor) and state.ndim:  # a count of steps has no rows
                    _check_rows(world, f"the optimizer's {key} of {name}", state, degree=world.layout.dp_shard)

    handle = optimizer.register_step_post_hook(check)


def check_batches(world: World, batch: GlobalBatch) -> None:
    """Ranks must see different samples that together are the global batch.

    Raises:
        GuardError: a sample is seen twice, or not at all.
    """
    mine = [sample for micro in batch.micro_batches for sample in micro.sample_ids if sample >= 0]
    shares = {world.layout.data_rank(rank): seen for rank, seen in enumerate(gather(world, mine))}
    seen = sorted(sample for share in shares.values() for sample in share)
    if seen != sorted(batch.sample_ids):
        raise GuardError(
            f"step {batch.step}: {len(shares)} shares of the batch hold {len(seen)} samples, {len(set(seen))} of them "
            f"different; the global batch has {len(batch.sample_ids)}. Ranks do not see the samples they should"
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
