"""The optimizers by name, one row each: their states, extra memory, and the job keys they obey"""

from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["adamw", "adamw_foreach", "adamw_8bit", "sgd", "adafactor"]

_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")


@dataclass(frozen=True, kw_only=True)
class OptimizerRule:
    """What is known of an optimizer, wherever it is planned or trained.

    Attributes:
        moments: states with an element for each of the weight, in its type.
        keys: those of `train` that not all obey; one with `momentum` has states where that is set.
        factored: a matrix has row and column sums in place of a moment.
        in_8_bits: moments are float32, those of large matrices 8 bits, by bitsandbytes.
        counts_steps: it keeps a float32 scalar for each tensor.
        temporaries: what a step makes beside its states: copies of all gradients, only where there
            is weight decay (`decayed`), or one tensor's update at a time (`largest`).
    """

    moments: int
    keys: tuple[str, ...] = ()
    factored: bool = False
    in_8_bits: bool = False
    counts_steps: bool = True
    temporaries: Literal["none", "all", "decayed", "largest"] = "none"

    @property
    def elementwise(self) -> bool:
        """Whether a part of a weight is stepped alone as it is beside the rest: any cut will do."""
        return not (self.factored or self.in_8_bits)

    def num_moments(self, *, momentum: bool) -> int:
        """Of a job, with or without `train.momentum`."""
        return self.moments if momentum or "momentum" not in self.keys else 0


OPTIMIZER_RULES: dict[OptimizerName, OptimizerRule] = {
    # Two moments (Loshchilov and Hutter, 2019). Over lists a step holds the roots of all second
    # ones at once (`torch.optim.adamw`, `_multi_tensor_adamw`).
    "adamw": OptimizerRule(moments=2, keys=_ADAM),
    "adamw_foreach": OptimizerRule(moments=2, keys=_ADAM, temporaries="all"),
    "adamw_8bit": OptimizerRule(moments=2, keys=_ADAM, in_8_bits=True),
    # It adds weight decay to copies of the gradients.
    "sgd": OptimizerRule(moments=1, keys=("momentum",), counts_steps=False, temporaries="decayed"),
    "adafactor": OptimizerRule(moments=1, factored=True, temporaries="largest"),
}
