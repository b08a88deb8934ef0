"""The looks that tell AdamW's own rounding from a fault: what a job is trained with, and how far rounding may carry
weights apart then."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.spec.job import TrainSpec
from shardwise.spec.request import Override

#: Steps that follow the gradient as it is: what rounding does to it, it does to the weights, and no more. Their size is
#: such that 20 of them of a clipped gradient can move all weights by as much as one, in Euclidean norm.
PLAIN: dict[str, Any] = {
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
}

#: Of the norm of all gradients, what adding in another order may change one tensor's by: four units of float32's
#: rounding.
ROUNDING = 2.0**-22

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Look:
    """A training of the job, the first or another.

    Attributes:
        name: what it is called beside the first, which has none.
        folder: of its runs, inside the proof's.
        train: as it is trained.
        changed: keys of `train` that the job has otherwise.
        num_trained: elements; counted where AdamW is damped.
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
        """How far apart a tensor may lie in all, in Euclidean norm: a tolerance of how far all weights can have been
        carried, which damped AdamW does by a learning rate in each element and step, or hardly more.

        There is none for AdamW as the job has it, whose steps of rounding are as long as others.

        Args:
            records: of one process, step by step.
        """
        if self.train.optimizer == "sgd":
            return tolerance * _travelled(records, self.train)
        return tolerance * _rates(records) * math.sqrt(self.num_trained)


def plain_look(train: TrainSpec) -> Look:
    """SGD: it shows what is wrong with gradients, and has no state that could be."""
    return Look(train=train.model_copy(update=PLAIN), name="sgd", folder="sgd", changed=tuple(PLAIN))


def damped_look(train: TrainSpec, records: Records, *, num_trained: int, tolerance: float) -> Look:
    """AdamW that makes next to no steps of rounding: it shows what is wrong with its moments, rates and decay.

    AdamW divides gradients by their own usual size plus epsilon. With an epsilon of `ROUNDING / tolerance` of the root
    mean square of all gradients, what is rounding carries no tensor farther than the look's floor, were it the same in
    every step; what is a gradient of usual size makes nearly the steps that it made. More would hide faults in weights
    whose gradients are smaller than others'.

    Args:
        train: of a job with AdamW.
        records: of one process under it.
        num_trained: elements that the job trains.
        tolerance: that floors are to be for.
    """
    share = min(1.0, ROUNDING / tolerance) if tolerance else 1.0
    epsilon = max(train.adam_epsilon, share * _largest_norm(records, train) / math.sqrt(num_trained))
    damped = train.model_copy(update={"adam_epsilon": epsilon})
    return Look(train=damped, name="adamw damped", folder="damped", changed=("adam_epsilon",), num_trained=num_trained)


def farthest_apart(train: TrainSpec, records: Records) -> float:
    """How far AdamW can carry one weight apart from another in these steps."""
    return 2 * _largest_step(train) * _rates(records)


def _largest_step(train: TrainSpec) -> float:
    """How far AdamW moves a weight in one step, at most, as a multiple of the learning rate (Kingma and Ba 2015,
    section 2.1)."""
    return max(1.0, (1 - train.adam_beta1) / math.sqrt(1 - train.adam_beta2))


def _travelled(records: Records, train: TrainSpec) -> float:
    """How far SGD has carried all weights together, at most: where gradients agree within a tolerance of their norm,
    weights do within the same share of this."""
    steps = (float(record["learning_rate"]) * _norm(record, train) for record in records)
    return sum(steps) / (1 - train.momentum)


def _rates(records: Records) -> float:
    return sum(float(record["learning_rate"]) for record in records)


def _largest_norm(records: Records, train: TrainSpec) -> float:
    return max((_norm(record, train) for record in records), default=0.0)


def _norm(record: dict[str, Any], train: TrainSpec) -> float:
    """Of a step's gradients as the optimizer gets them."""
    return min(train.max_grad_norm or math.inf, float(record["grad_norm"]))
