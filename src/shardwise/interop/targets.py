"""Everything that a plan can be exported to; trainers among them can be planned for"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.errors import Problem, UnsupportedError
from shardwise.interop import accelerate, axolotl, deepspeed, llama_factory, ms_swift, torchtitan, trl
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.kubernetes import to_kubernetes
from shardwise.interop.launchers import to_slurm, to_torchrun
from shardwise.interop.limits import TrainerLimits, limits_of
from shardwise.interop.skypilot import to_skypilot

Refusals = Callable[[Chosen], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """`make` makes its files. Of another trainer than this one: `limits` are what they can say, and
    `own` why it would train something else where they can."""

    make: Callable[[Chosen], Exported]
    limits: TrainerLimits | None = None
    own: Refusals = lambda _: ()

    def write(self, chosen: Chosen) -> Exported:
        """Its files. Raises UnsupportedError: every reason why they would train something else."""
        for refusals in (self.limits.refusals, self.own) if self.limits else ():
            if problems := [Problem(where=chosen.path, message=message) for message in refusals(chosen)]:
                raise UnsupportedError(problems)
        return self.make(chosen)


def _trainer(name: str, make: Callable[[Chosen], Exported], own: Refusals = lambda _: ()) -> Target:
    return Target(make=make, limits=limits_of(name), own=own)


#: The first four start Shardwise; the others are for people who stay with their trainer.
TARGETS: dict[str, Target] = {
    "torchrun": Target(make=to_torchrun),
    "slurm": Target(make=to_slurm),
    "kubernetes": Target(make=to_kubernetes),
    "skypilot": Target(make=to_skypilot),
    "accelerate": _trainer("accelerate", accelerate.to_accelerate),
    "deepspeed": _trainer("deepspeed", deepspeed.to_deepspeed, deepspeed.refusals),
    "trl": _trainer("trl", trl.to_trl, trl.refusals),
    "torchtitan": _trainer("torchtitan", torchtitan.to_torchtitan, torchtitan.refusals),
    "axolotl": _trainer("axolotl", axolotl.to_axolotl, axolotl.refusals),
    "llama-factory": _trainer("llama-factory", llama_factory.to_llama_factory, llama_factory.refusals),
    "ms-swift": _trainer("ms-swift", ms_swift.to_ms_swift, ms_swift.refusals),
}
