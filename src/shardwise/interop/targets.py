"""All targets of `export`, by name"""

from __future__ import annotations

from collections.abc import Callable

from shardwise.interop.accelerate import to_accelerate
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.deepspeed import to_deepspeed
from shardwise.interop.launchers import to_kubernetes, to_skypilot, to_slurm, to_torchrun
from shardwise.interop.torchtitan import to_torchtitan
from shardwise.interop.trl import to_trl

#: The first four start Shardwise; the others are for people who stay with their trainer.
TARGETS: dict[str, Callable[[Chosen], Exported]] = {
    "torchrun": to_torchrun,
    "slurm": to_slurm,
    "kubernetes": to_kubernetes,
    "skypilot": to_skypilot,
    "accelerate": to_accelerate,
    "deepspeed": to_deepspeed,
    "trl": to_trl,
    "torchtitan": to_torchtitan,
}
