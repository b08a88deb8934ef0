"""Dynamic loss scaling of float16 (Micikevicius et al., 2018), with figures of torch's GradScaler.

Gradients in float16 below 6e-8 are lost: the loss is multiplied before backward, and gradients are
divided before they are clipped. A step whose gradient norm, alike on all ranks, is not finite is
skipped.
"""

import math
from dataclasses import dataclass
from typing import Self

from shardwise.spec.layout.execution import Precision

FIRST_SCALE, GROWTH, BACKOFF, GROWTH_STEPS = 65536.0, 2.0, 0.5, 2000


@dataclass(kw_only=True)
class LossScale:
    """The loss multiplier of the next step: `value`, 1 where nothing is scaled, which `is_fixed`.
    `good_steps`: consecutive steps not skipped since the scale last changed."""

    value: float = 1.0
    good_steps: int = 0
    is_fixed: bool = True

    @classmethod
    def of(cls, precision: Precision) -> Self:
        """What a precision begins with."""
        return cls(value=FIRST_SCALE, is_fixed=False) if precision == "fp16" else cls()

    def skips(self, *, loss: float, norm: float) -> bool:
        """Whether a step is left out: gradients overflowed, though the loss did not."""
        return not self.is_fixed and math.isfinite(loss) and not math.isfinite(norm)

    def follow(self, *, skipped: bool) -> None:
        """After each step: smaller where it was skipped, larger after many that were not."""
        if self.is_fixed:
            return
        self.good_steps = 0 if skipped else self.good_steps + 1
        if skipped:
            self.value *= BACKOFF
        elif self.good_steps == GROWTH_STEPS:
            self.value, self.good_steps = self.value * GROWTH, 0

    def to_json(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"value": self.value, "good_steps": self.good_steps}

    def restore(self, saved: dict[str, float] | None) -> None:
        """Goes on from a checkpoint; one of another precision has nothing to say."""
        if saved is not None and not self.is_fixed:
            self.value, self.good_steps = float(saved["value"]), int(saved["good_steps"])
