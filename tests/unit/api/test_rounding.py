"""The looks of `verify`: what rounding may do under a damped AdamW, and a fault of its state."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from shardwise.api.checks.proof import ROUNDING, Look, damped_look
from shardwise.spec.job.keys import TrainSpec

STEPS, RATE, NORM, TRAINED, TOLERANCE = 20, 1e-3, 0.5, 1_000_000, 1e-5
RECORDS: list[dict[str, Any]] = [{"learning_rate": RATE, "grad_norm": NORM}] * STEPS


def look(train: TrainSpec | None = None, *, tolerance: float = TOLERANCE) -> Look:
    return damped_look(train or TrainSpec(), RECORDS, num_trained=TRAINED, tolerance=tolerance)


def carried(gradient: Callable[[int], float], train: TrainSpec, *, forgets: float = 1.0) -> float:
    """Where AdamW takes one weight from 0; `forgets` is what is left of its second moment at each
    step's end."""
    weight = first = second = 0.0
    b1, b2 = train.adam_beta1, train.adam_beta2
    for step in range(1, STEPS + 1):
        first = b1 * first + (1 - b1) * gradient(step)
        second = b2 * second + (1 - b2) * gradient(step) ** 2
        weight -= RATE * first / (1 - b1**step) / (math.sqrt(second / (1 - b2**step)) + train.adam_epsilon)
        second *= forgets
    return weight


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_rounding_carries_no_tensor_past_the_floor(tolerance: float) -> None:
    damped = look(tolerance=tolerance)
    floor = damped.floor(RECORDS, tolerance=tolerance)
    for size in (1, 10_000):
        one = ROUNDING * NORM / math.sqrt(size)
        assert abs(carried(lambda _, one=one: one, damped.train)) * math.sqrt(size) <= floor
        assert abs(carried(lambda step, one=one: one * (-1) ** step, damped.train)) * math.sqrt(size) <= floor


def test_a_second_moment_that_loses_a_percent_in_every_step_carries_a_matrix_past_it() -> None:
    """Of a thousandth of all weights, whose gradients are a twentieth of others'."""
    damped, size = look(), TRAINED // 1000
    one = 0.05 * NORM / math.sqrt(TRAINED)
    apart = carried(lambda _: one, damped.train) - carried(lambda _: one, damped.train, forgets=0.99)
    assert abs(apart) * math.sqrt(size) > damped.floor(RECORDS, tolerance=TOLERANCE)


def test_adafactor_is_trained_again_as_it_is_for_it_has_no_epsilon_of_adamw() -> None:
    assert look(TrainSpec(optimizer="adafactor")).overrides == ()
    assert look().overrides[0].text.startswith("train.adam_epsilon=")
