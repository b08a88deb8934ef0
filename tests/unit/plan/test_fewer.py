"""Where a rounder part of the hardware would be faster than all of it, the plan says so."""

import pytest

from tests.unit.plan.asking import plan

SEVEN = "method: lora\ntrain: {global_batch_size: 4}\n"


def said(made):
    sentences = made.best.reasons if made.best else made.advice
    return [one for one in sentences if "a part of this" in one or one.endswith("a step there")]


@pytest.mark.parametrize(
    ("model", "hardware", "text", "part", "much"),
    [
        ("llama-3.1-405b", "127 x 8x H100-SXM", "", "64 x 8x H100-SXM", "15.2 times as fast"),
    ],
)
def test_a_part_that_is_faster_is_named_and_is_as_fast_as_it_says(model, hardware, text, part, much):
    whole = plan(model, hardware, text)
    there = plan(model, part, text).best
    (sentence,) = said(whole)
    assert sentence.startswith(f"{part}, a part of this, would be {much}: {there.execution.layout.strategy} takes ")
    assert whole.best.execution.layout.world_size > there.execution.layout.world_size
    assert whole.best.time.step_seconds > 1.1 * there.time.step_seconds


def test_a_part_on_which_alone_the_job_fits_is_named():
    text = "layout: [tp]\nmethod: full\ntrain: {offload: none}\n"
    whole = plan("llama-3.1-8b", "7x A100-80GB", text)
    assert whole.best is None
    (sentence,) = said(whole)
    assert sentence.startswith("4x A100-80GB would fit: tp takes ")
    assert plan("llama-3.1-8b", "4x A100-80GB", text).best is not None


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        ("8x L4", SEVEN),
        ("7x L4", f"goal: fewest-gpus\n{SEVEN}"),
        ("7x L4", f"goal: cheapest\n{SEVEN}"),
        ("7x L4", f"layout: ddp\n{SEVEN}"),
        ("7x L4", "layout: {pp: 7}\nmethod: lora\n"),
        ("7x L4", "method: lora\ntrain: {global_batch_size: 700}\n"),
        ("cpu:7", SEVEN),
    ],
)
def test_nothing_is_said_where_no_part_is_faster_or_none_is_asked_about(hardware, text):
    assert said(plan("llama-3.2-1b", hardware, text)) == []


def test_a_plan_says_that_qlora_leaves_experts_wide():
    asked = "method: qlora\ntrain: {offload: none}\n"
    made = plan("mixtral-8x7b", "2x H100-SXM", asked)
    assert made.best is None
    assert made.advice[0] == (
        "qlora does not quantise experts that a block keeps in one tensor, and widens them to float32: 168.0 GiB of "
        "all weights; method: lora leaves them in the type that they come in"
    )
    assert "method: lora would fit" in made.advice
    assert plan("mixtral-8x7b", "2x H100-SXM", asked.replace("qlora", "lora")).best is not None
    assert made.advice[0] in plan("mixtral-8x7b", "4x H100-SXM", asked).best.reasons
    for other in ("lora", "full"):
        assert not any(
            "experts" in one for one in plan("mixtral-8x7b", "8x H200-SXM", f"method: {other}\n").best.reasons
        )
    assert not any("experts" in one for one in plan("llama-3.1-8b", "2x H100-SXM", asked).best.reasons)
