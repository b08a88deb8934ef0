"""Everything that a plan can be exported to; trainers among them can be planned for"""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.interop import accelerate, axolotl, deepspeed, llama_factory, ms_swift, torchtitan, trl
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.kubernetes import to_kubernetes
from shardwise.interop.launchers import to_slurm, to_torchrun
from shardwise.interop.limits import TrainerLimits
from shardwise.interop.skypilot import to_skypilot


@dataclass(frozen=True, kw_only=True)
class Target:
    """`write` makes its files; `limits`: what they can say, of another trainer than this one."""

    write: Callable[[Chosen], Exported]
    limits: TrainerLimits | None = None


#: The first four start Shardwise; the others are for people who stay with their trainer.
TARGETS: dict[str, Target] = {
    "torchrun": Target(write=to_torchrun),
    "slurm": Target(write=to_slurm),
    "kubernetes": Target(write=to_kubernetes),
    "skypilot": Target(write=to_skypilot),
    "accelerate": Target(write=accelerate.to_accelerate, limits=accelerate.LIMITS),
    "deepspeed": Target(write=deepspeed.to_deepspeed, limits=deepspeed.LIMITS),
    "trl": Target(write=trl.to_trl, limits=trl.LIMITS),
    "torchtitan": Target(write=torchtitan.to_torchtitan, limits=torchtitan.LIMITS),
    "axolotl": Target(write=axolotl.to_axolotl, limits=axolotl.LIMITS),
    "llama-factory": Target(write=llama_factory.to_llama_factory, limits=llama_factory.LIMITS),
    "ms-swift": Target(write=ms_swift.to_ms_swift, limits=ms_swift.LIMITS),
}
