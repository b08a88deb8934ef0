"""The chance that a plan fits is of measured errors, and no surer than their number allows."""

import pytest

from shardwise import api
from shardwise.catalog.calibration import LEAST_ROWS, OTHERS, OWN, Errors, errors_of
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.file import plan_from_json
from shardwise.spec.plan.forecast import verdict

JOB = ("model=qwen3-1.7b", "data.max_length=2048")


def test_the_chance_grows_with_the_room_that_is_left() -> None:
    errors = Errors(name="some", rows=9, sources=2, ratios=(0.9, 1.0, 1.1, 1.2))
    chances = [errors.chance_below(ratio) for ratio in (0.1, 0.95, 1.0, 1.15, 1.2, 5.0)]
    assert chances == sorted(chances)
    assert chances[0] == 0.1 and chances[-1] == 0.9  # nine runs say no more than that
    assert chances[2] == pytest.approx(0.375)


@pytest.mark.parametrize("stack", [OWN, OTHERS])
@pytest.mark.parametrize("layout", [Layout(), Layout(dp_shard=2), Layout(tp=2), Layout(dp_replicate=2)])
def test_groups_of_few_rows_are_pooled(stack, layout) -> None:
    found = errors_of(stack, layout)
    assert found.rows >= LEAST_ROWS and found.name.startswith(stack)
    assert list(found.ratios) == sorted(found.ratios)


def test_a_plan_says_its_chance_where_it_has_one_and_what_would_narrow_it() -> None:
    own = api.plan(overrides=[*JOB, "hardware=1x H100-SXM"])
    assert own.chance.in_100 >= 95 and own.chance.word == "surely"
    assert verdict(own).endswith(f"; it fits {own.chance.word} ({own.chance.in_100} in 100)")
    assert plan_from_json(own.to_json()).chance == own.chance
    tight = ["hardware=1x H100-SXM", "train.gradient_checkpointing=none", "train.micro_batch_size=5"]
    theirs = api.plan(overrides=[*JOB, *tight, "train.global_batch_size=5"], target="accelerate")
    assert theirs.chance.group.startswith(OTHERS) and theirs.chance.in_100 < own.chance.in_100
    assert "one step of accelerate on such a GPU" in theirs.chance.narrowed_by
    assert api.plan(overrides=[*JOB, "hardware=cpu:2"]).chance is None
    assert api.plan(overrides=["model=llama-3.1-70b", "hardware=1x T4"]).chance is None


def test_a_screen_takes_of_the_chance_and_not_of_what_fits() -> None:
    job = ["model=llama-3.1-8b", "method=lora", "train.compile=false", "train.micro_batch_size=1"]
    desk, rack = (api.plan(overrides=[*job, f"hardware=1x {name}"]) for name in ("RTX-4090", "L4"))
    assert "for a screen, if the card drives one; what would narrow" in desk.chance.sentence
    assert "screen" not in rack.chance.sentence
    room, errors = desk.best.memory.capacity_bytes, errors_of(OWN, desk.best.execution.layout)
    share = errors.chance_below((room - desk.chance.screen_bytes) / desk.best.memory.peak_reserved_bytes)
    assert desk.chance.in_100 == min(99, int(100 * share))
    assert room > 23 * 2**30, "what fits has all of the card"
