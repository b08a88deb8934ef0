"""Checks by hashes that replicas of a weight are bit-identical on all ranks, trained or frozen."""

from collections.abc import Sequence

import torch
from torch import nn

from shardwise.models.load import local_window
from shardwise.parallel.mesh import World
from shardwise.parallel.ownership import local_part
from shardwise.train.guards.checks import GuardError, gather

#: Replicas are compared every so many steps; all of them at the start and before every save.
REPLICA_CHECK_STEPS = 200

#: Words that are hashed at once; takes 16 MiB of the device.
CHUNK_WORDS = 2**20

_WHOLE_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Part = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A weight's name, where in it a part begins, and how far it goes, by dim."""


def check_replicas(world: World, parameters: Sequence[tuple[str, nn.Parameter]], *, when: str) -> None:
    """Compares bytes of replicated parts; the same GuardError on every rank, begun by `when`."""
    if world.layout.world_size == world.layout.weight_shards:
        return  # every part is held once
    trained = {name for name, parameter in parameters if parameter.requires_grad}
    known: dict[Part, tuple[int, int]] = {}
    for rank, hashes in enumerate(gather(world, (trained, part_hashes(parameters)))):
        trained |= hashes[0]
        for part, value in hashes[1].items():
            other, first = known.setdefault(part, (rank, value))
            if value != first:
                kind = "trained" if part[0] in trained else "frozen"
                harm = "train its own model" if kind == "trained" else "train for a model of its own"
                raise GuardError(
                    f"{when}: rank {other} and rank {rank} hold different {kind} weights in {part[0]}, though they are "
                    f"replicas; the run was stopped because each would {harm}"
                )


def part_hashes(parameters: Sequence[tuple[str, nn.Parameter]]) -> dict[Part, int]:
    """Each part this rank holds -> a hash of its bits, modulo 2**64: the sum of words times odd
    numbers of their positions. Any changed word changes it; device and order do not matter."""
    words = [bits(local_part(parameter)) for _, parameter in parameters]
    if not words:
        return {}
    multipliers = _odd_numbers(min(CHUNK_WORDS, max(part.numel() for part in words)), device=words[0].device)
    hashes = torch.stack([_hash(part, multipliers) for part in words]).tolist()
    return dict(zip([(name, *local_window(parameter)) for name, parameter in parameters], hashes, strict=True))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor's elements as flat integers."""
    return tensor.contiguous().flatten().view(_WHOLE_TYPES[tensor.element_size()])


def _hash(words: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    """Words of a chunk by their positions, chunks by theirs; a scalar on the words' device."""
    chunks = [(chunk * multipliers[: len(chunk)]).sum(dtype=torch.int64) for chunk in words.split(CHUNK_WORDS)]
    return (torch.stack(chunks) * _odd_numbers(len(chunks), start=2**40, device=words.device)).sum()


def _odd_numbers(count: int, *, device: torch.device, start: int = 0) -> torch.Tensor:
    """Odd pseudo-random int64, shape [count], from index `start` on."""
    scattered = torch.arange(start, start + count, dtype=torch.int64, device=device) * 0x1E3779B97F4A7C15
    scattered = (scattered ^ (scattered >> 29)) * 0x3F58476D1CE4E5B9
    return (scattered ^ (scattered >> 32)) | 1
