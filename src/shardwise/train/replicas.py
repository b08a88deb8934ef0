"""Copies of a weight must be the same bytes on all ranks that hold it, in the same order, frozen or trained.

Each rank hashes what it holds on its device, and the hashes are compared: one number per weight travels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from shardwise.models.load import local_window
from shardwise.parallel.mesh import World
from shardwise.parallel.ownership import local_part
from shardwise.train.guards import GuardError, gather

#: Words that are weighed at once: their multipliers take 8 MiB of the device, and their products as much again.
CHUNK_WORDS = 2**20

_WHOLE_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

#: What differing weights are, and what would come of them.
_TRAINED = ("trained", "each would train its own model")
_FROZEN = ("frozen", "each would train for a model of its own")

Part = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A weight's name, where in it a part begins, and how far it goes, by dim."""


def check_replicas(world: World, parameters: Sequence[tuple[str, nn.Parameter]], *, when: str) -> None:
    """Ranks that hold the same part of a weight must hold the same bytes, whichever axis makes them replicas.

    Args:
        parameters: those that are compared, by name.
        when: begins the sentence.

    Raises:
        GuardError: two of them differ; on every rank, and with the same sentence.
    """
    if world.layout.world_size == world.layout.weight_shards:
        return  # every part is held once
    trained = {name for name, parameter in parameters if parameter.requires_grad}
    known: dict[Part, tuple[int, int]] = {}
    for rank, hashes in enumerate(gather(world, (trained, part_hashes(parameters)))):
        trained |= hashes[0]
        for part, value in hashes[1].items():
            other, first = known.setdefault(part, (rank, value))
            if value != first:
                kind, harm = _TRAINED if part[0] in trained else _FROZEN
                raise GuardError(
                    f"{when}: rank {other} and rank {rank} hold different {kind} weights in {part[0]}, though they are "
                    f"replicas; the run was stopped because {harm}"
                )


def part_hashes(parameters: Sequence[tuple[str, nn.Parameter]]) -> dict[Part, int]:
    """What this rank holds of each parameter -> a hash of its bits, modulo 2**64.

    Each word counts times an odd number that its place alone decides: a changed word always changes the hash, and
    words in another order change it but for one case in billions. Integers are exact and wrap around alike, so that
    the hash does not depend on the device, nor on the order in which it adds.
    """
    words = [bits(local_part(parameter)) for _, parameter in parameters]
    if not words:
        return {}
    multipliers = _odd_numbers(min(CHUNK_WORDS, max(part.numel() for part in words)), device=words[0].device)
    hashes = torch.stack([_hash(part, multipliers) for part in words]).tolist()
    parts = [(name, *local_window(parameter)) for name, parameter in parameters]
    return dict(zip(parts, hashes, strict=True))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor's elements as integers, flat: equal where these are the same, NaN or not."""
    return tensor.contiguous().flatten().view(_WHOLE_TYPES[tensor.element_size()])


def _hash(words: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    """The words of a chunk by their places, the chunks by theirs; a scalar on the words' device."""
    chunks = [(chunk * multipliers[: len(chunk)]).sum(dtype=torch.int64) for chunk in words.split(CHUNK_WORDS)]
    # Other numbers than those of words, or the product of two places would be that of two others.
    return (torch.stack(chunks) * _odd_numbers(len(chunks), start=2**40, device=words.device)).sum()


def _odd_numbers(count: int, *, device: torch.device, start: int = 0) -> torch.Tensor:
    """Odd int64, shape [count], from `start` on of a series that multiply and shift scatter over all bits."""
    scattered = torch.arange(start, start + count, dtype=torch.int64, device=device) * 0x1E3779B97F4A7C15
    scattered = (scattered ^ (scattered >> 29)) * 0x3F58476D1CE4E5B9
    return (scattered ^ (scattered >> 32)) | 1
