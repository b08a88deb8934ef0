"""Saves and restores a rank's random generators.

On another layout they are seeded anew: ranks that hold slices of the same block must draw alike, and ranks with
different samples must not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from shardwise.parallel.mesh import World
from shardwise.spec.layout.axes import AXES
from shardwise.train.saving.checkpoint_reader import Reader

_ON_HOST = "random.cpu"
_ON_GPU = "random.cuda"


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of this rank's generators, by the names they are stored under."""
    state = {_ON_HOST: torch.get_rng_state()}
    if device.type == "cuda":
        state[_ON_GPU] = torch.cuda.get_rng_state(device)
    return state


def restore_random(reader: Reader, *, file: str, written: dict[str, Any], world: World, seed: int, step: int) -> None:
    """Restores this rank's generators if its layout is the one `written`; otherwise seeds them anew."""
    names = [_ON_HOST, _ON_GPU] if world.device.type == "cuda" else [_ON_HOST]
    same = tuple(written[axis] for axis in AXES) == world.layout.degrees
    states = reader.tensors_of(file, names) if same else None
    if states is None:
        digest = hashlib.sha256(f"{seed} {world.stream} {step}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return
    torch.set_rng_state(states[_ON_HOST])
    if _ON_GPU in states:
        torch.cuda.set_rng_state(states[_ON_GPU], world.device)
