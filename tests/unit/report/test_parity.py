"""The first difference between two runs, from metrics written by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from shardwise.report.parity import Parity, agreement, failed, looked_at_damped, looked_at_plainly, may_be_rounding

Records = list[dict[str, Any]]
SAME = {"num_tensors": 3, "relative": 1e-8, "absolute": 1e-9, "worst": "a", "first": None, "reason": None}
APART = {**SAME, "absolute": 2e-4, "relative": 1e-4, "first": "h.0.bias", "reason": "differs by 1.00e-04"}


def records(num_steps: int = 10) -> Records:
    def figures(step: int) -> dict[str, Any]:
        close = {"loss": 4.0 / step, "grad_norm": 1.0 + 1.0 / step}
        exact = {"epoch": step / 10, "learning_rate": 1e-4 * step, "tokens": 100 + step, "trained_tokens": 50 + step}
        return {"step": step, "step_seconds": 0.1, **close, **exact}

    return [figures(step) for step in range(1, num_steps + 1)]


def changed(step: int, **figures: Any) -> Records:
    return [{**record, **figures} if record["step"] == step else record for record in records()]


def beside(found: Records, *, layout="fsdp-2", weights: Any = SAME, reference: Records | None = None):
    reference = records() if reference is None else reference
    return agreement(layout, processes=2, run="run", reference=reference, found=found, weights=weights, tolerance=1e-5)


def first_of(found) -> tuple[int | None, str, str]:
    return found.first.step, found.first.figure, found.first.sentence


def table(*layouts) -> Parity:
    return Parity(reference="one", num_steps=10, tolerance=1e-5, changes=(), layouts=layouts, unable=())


def test_equal_records_agree_and_floating_point_within_the_tolerance() -> None:
    found = beside(records())
    assert (found.first, found.num_steps, found.loss, found.grad_norm) == (None, 10, 0.0, 0.0)
    assert table(found).agrees
    assert "the same training on one process and under fsdp-2: 10 steps" in table(found).sentence
    assert table(found).sentence.endswith("exact, the same final weights")
    still = replace(table(found), moved=False)
    assert still.sentence.endswith(
        "exact, and unchanged weights: the learning rate is 0 in every step (all are warm-up); use more steps"
    )
    assert still.to_json()["moved"] is False
    found = beside(changed(3, loss=4.0 / 3 * (1 + 9e-6)))
    assert (found.first, found.grad_norm, found.loss) == (None, 0.0, pytest.approx(9e-6, rel=1e-3))
    zero = changed(1, grad_norm=0.0)
    assert beside(zero, reference=zero).first is None
    assert beside(changed(1, grad_norm=1e-12), reference=zero).first is not None, "no share of 0 is allowed"


def test_the_first_difference_and_the_figure_nearest_its_cause_are_named() -> None:
    late = beside(changed(9, loss=1.0), layout="ddp-2")
    early = beside(changed(7, grad_norm=1.25), layout="fsdp-2")
    parity = table(late, early)
    assert not parity.agrees
    assert parity.sentence == "fsdp-2 differs at step 7: grad_norm is 1.25, on one process 1.1428571428571428"
    sentence = "fsdp-2 differs at step 2: trained_tokens is 3, on one process 52"
    assert first_of(beside(changed(2, loss=9.0, grad_norm=9.0, trained_tokens=3))) == (2, "trained_tokens", sentence)


@pytest.mark.parametrize("figure", ["tokens", "trained_tokens", "epoch", "learning_rate"])
def test_counts_epochs_and_learning_rates_are_exact(figure: str) -> None:
    assert first_of(beside(changed(5, **{figure: records()[4][figure] * (1 + 1e-9)})))[:2] == (5, figure)


def test_what_only_one_run_has_or_neither_and_evaluations_are_differences() -> None:
    for found, step, who in ((records(8), 9, "one process"), (records(12), 11, "fsdp-2")):
        assert first_of(beside(found))[2] == f"fsdp-2 differs at step {step}: step: recorded by {who} only"
    assert "no step is recorded" in first_of(beside([], reference=[]))[2]
    assert first_of(beside(records(), weights=None))[1] == "weights"
    evaluated = changed(5, eval_loss=2.0)
    assert beside(evaluated, reference=evaluated).first is None
    for found in (changed(5, eval_loss=2.1), records()):
        assert first_of(beside(found, reference=evaluated))[:2] == (5, "eval_loss")


@pytest.mark.parametrize("missing", ["loss", "grad_norm", "tokens"])
def test_a_figure_that_neither_run_recorded_is_no_agreement(missing: str) -> None:
    without = [{key: value for key, value in record.items() if key != missing} for record in records()]
    sentence = f"fsdp-2 differs at step 1: {missing} is not recorded, on one process not recorded"
    assert first_of(beside(without, reference=without))[2] == sentence


def test_weights_that_differ_after_equal_steps_are_named_last() -> None:
    reason = "differs by 2.00e-01 relative to its norm"
    weights = {**SAME, "relative": 0.2, "first": "lm_head.weight", "reason": reason}
    found = beside(records(), weights=weights)
    assert first_of(found)[2] == f"fsdp-2 differs after the last step: weights: lm_head.weight {reason}"
    both = beside(changed(7, loss=9.0), weights=weights)
    assert first_of(both)[1] == "loss"
    assert table(found, both).first == both.first


def test_a_layout_that_failed_stands_before_all_differences() -> None:
    broken = failed("hsdp-4", processes=4, run="run", reason="rank 3 failed while training")
    parity = table(beside(changed(1, loss=9.0)), beside(records()), broken)
    assert parity.sentence == "hsdp-4 did not train: rank 3 failed while training"
    plain = json.loads(json.dumps(parity.to_json(), allow_nan=False))
    assert (plain["version"], plain["agrees"], plain["first"]["layout"]) == (1, False, "hsdp-4")
    assert plain["layouts"][1]["loss"] == 0.0


def test_weights_that_only_adamw_carries_apart_are_its_rounding() -> None:
    found = beside(records(), weights=APART)
    assert found.first is not None
    assert may_be_rounding(found)
    rounded = looked_at_plainly(found, beside(records()), most=1e-3)
    assert (rounded.first, rounded.plain) == (None, beside(records()))
    assert table(rounded).agrees
    assert table(rounded).sentence.endswith(
        "the same final weights, of fsdp-2 within adamw's own rounding: where a gradient is almost 0, adamw makes "
        "whole steps of rounding; with a larger adam_epsilon, and with sgd, the weights agree"
    )
    assert json.loads(json.dumps(table(rounded).to_json()))["layouts"][0]["plain"]["first"] is None
    seen = looked_at_damped(found, rounded, beside(records()))
    assert (seen.first, seen.plain, seen.damped) == (None, beside(records()), beside(records()))


def test_weights_that_differ_with_damped_adamw_or_sgd_too_or_farther_than_adamw_steps_differ() -> None:
    found = beside(records(), weights=APART)
    damped = beside(records(), weights={**APART, "first": "h.1.weight", "reason": "differs by 3.00e-03"})
    seen = looked_at_damped(found, looked_at_plainly(found, beside(records()), most=1e-3), damped)
    assert seen.damped == damped
    assert not table(seen).agrees
    assert table(seen).sentence == (
        "fsdp-2 differs after the last step: weights: h.0.bias differs by 1.00e-04; with sgd all of it is the same, "
        "with adamw damped differs after the last step: weights: h.1.weight differs by 3.00e-03"
    )
    seen = looked_at_plainly(found, beside(records()), most=1e-4)
    said = "fsdp-2 differs after the last step: weights: h.0.bias differs by 1.00e-04; with sgd "
    assert first_of(seen)[2] == f"{said}all of it is the same, and adamw's steps of rounding cannot add up to this"
    assert looked_at_damped(found, seen, beside(records())).first == seen.first, "no rounding that they all would have"
    seen = looked_at_plainly(beside(records(), weights=APART), beside(changed(2, loss=1.5), weights=APART), most=1.0)
    assert first_of(seen)[2].endswith("with sgd differs at step 2: loss is 1.5, on one process 2")


def test_a_loss_that_differs_is_no_rounding_of_weights_and_a_count_no_rounding_at_all() -> None:
    found = beside(changed(4, loss=1.1))
    seen = looked_at_plainly(found, beside(records()), most=1.0)
    faulty = first_of(looked_at_damped(found, seen, beside(changed(3, loss=1.7))))[2]
    rounded = first_of(looked_at_damped(found, seen, beside(records())))[2]
    said = "fsdp-2 differs at step 4: loss is 1.1, on one process 1; with sgd "
    assert faulty.startswith(f"{said}all of it is the same, with adamw damped differs at step 3: loss is 1.7")
    assert rounded.startswith(f"{said}and with adamw damped all of it is the same: adamw amplifies rounding ")
    assert not may_be_rounding(beside(changed(4, tokens=7)))
    assert not may_be_rounding(beside(records(9)))
    assert not may_be_rounding(failed("ddp-2", processes=2, run="run", reason="killed"))
