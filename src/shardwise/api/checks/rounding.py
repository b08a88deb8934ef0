"""Tells rounding that AdamW amplifies from real differences, by training with SGD and with a larger epsilon."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.spec.job.keys import TrainSpec
from shardwise.spec.request import Override

#: SGD moves weights by no more than rounding of the gradient; 20 steps of a clipped one move all weights by up to 1.
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
}

#: Relative to the norm of all gradients, what another order of summation may change: four units of float32's rounding.
ROUNDING = 2.0**-22

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Look:
    """One training of the job for the comparison.

    Attributes:
        name: empty for the job as it is.
        folder: of its runs.
        train: its settings.
        changed: keys of `train` that differ from the job's.
        num_trained: trained elements; used where AdamW is damped.
    """

    train: TrainSpec
    name: str = ""
    folder: str = ""
    changed: tuple[str, ...] = ()
    num_trained: int = 0

    @property
    def overrides(self) -> tuple[Override, ...]:
        """What makes the job this one."""
        values = self.train.model_dump(mode="json", include=set(self.changed))
        return tuple(
            Override(text=f"train.{key}={json.dumps(values[key])}", where=f"verify sets train.{key}")
            for key in self.changed
        )

    def floor(self, records: Records, *, tolerance: float) -> float:
        """The largest norm by which rounding may move a tensor apart: `tolerance` times how far all weights can move. 0
        for AdamW as the job has it, whose steps do not shrink with the gradient. `records`: of one process, step by
        step."""
        if self.train.optimizer == "sgd":
            # How far SGD has moved all weights together, at most, in Euclidean norm.
            travelled = sum(float(record["learning_rate"]) * _norm(record, self.train) for record in records)
            return tolerance * travelled / (1 - self.train.momentum)
        return tolerance * _rates(records) * math.sqrt(self.num_trained)


def plain_look(train: TrainSpec) -> Look:
    """With SGD, which shows errors in gradients and has no state."""
    return Look(train=train.model_copy(update=PLAIN), name="sgd", folder="sgd", changed=tuple(PLAIN))


def damped_look(train: TrainSpec, records: Records, *, num_trained: int, tolerance: float) -> Look:
    """With an AdamW whose epsilon is large beside rounding, which shows errors in moments, rates and decay. AdamW
    divides gradients by their usual size plus epsilon. With an epsilon of `ROUNDING / tolerance` of the root mean
    square of all gradients, rounding moves no tensor farther than the floor, and a usual gradient makes nearly a usual
    step. `records`: of one process; `num_trained`: elements that the job trains."""
    share = min(1.0, ROUNDING / tolerance) if tolerance else 1.0
    largest = max((_norm(record, train) for record in records), default=0.0)
    epsilon = max(train.adam_epsilon, share * largest / math.sqrt(num_trained))
    damped = train.model_copy(update={"adam_epsilon": epsilon})
    # An optimizer without such an epsilon is held to the same floor in its second training.
    changed = tuple({"adam_epsilon"} & set(train.optimizer_rule.keys))
    return Look(train=damped, name="adamw damped", folder="damped", changed=changed, num_trained=num_trained)


def farthest_apart(train: TrainSpec, records: Records) -> float:
    """How far AdamW can move one weight apart from another in these steps."""
    # As a multiple of the learning rate (Kingma and Ba 2015, section 2.1).
    largest_step = max(1.0, (1 - train.adam_beta1) / math.sqrt(1 - train.adam_beta2))
    return 2 * largest_step * _rates(records)


def _rates(records: Records) -> float:
    return sum(float(record["learning_rate"]) for record in records)


def _norm(record: dict[str, Any], train: TrainSpec) -> float:
    """Of a step's clipped gradients; 0 where it was skipped."""
    return min(train.max_grad_norm or math.inf, float(record["grad_norm"] or 0.0))
