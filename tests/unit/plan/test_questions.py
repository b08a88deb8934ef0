"""Questions of experienced people, and answers that they must be able to believe."""

import pytest

from shardwise.catalog.offers import num_offers, offered_hardware
from shardwise.plan import best_of_catalogue
from shardwise.spec.plan.file import plan_from_json
from tests.unit.plan.asking import find_model, job, parse_hardware, plan

LARGE = "data: {max_length: 2048}\ntrain: {global_batch_size: 16}\n"


def test_a_faster_layout_is_taken_mentioned_or_doubted_by_how_much_it_is() -> None:
    text = "method: lora\ndata: {max_length: 2048}\ntrain: {global_batch_size: 64}\n"
    made = plan("codellama-34b", "4x RTX-6000-Ada", text)
    assert made.best.execution.layout.strategy == "pp"
    fsdp = next(one for one in made.candidates if one.execution.layout.strategy == "fsdp")
    assert made.best.time.step_seconds < 0.76 * fsdp.time.step_seconds
    made = plan("llama-3.1-8b", "2x RTX-3090", "method: lora\n")
    assert not any("would be" in reason for reason in made.best.reasons)
    doubted = plan("llama-3.1-405b", "8x H200", "method: lora\n")
    (said,) = (reason for reason in doubted.best.reasons if "would be" in reason)
    assert said.startswith("pp x tp would be 11 % faster; no GPU has measured such a layout, and")


#: (model, hardware, job) -> changes of `train` that are advised, in any order.
ADVISED = [
    ("llama-3-70b", "2 x 8x H100-SXM", "data: {max_length: 4096}\ntrain: {global_batch_size: 64}\n", {"adamw_8bit"}),
    ("llama-3.2-1b", "1x RTX-4060-Ti-16GB", "train: {}\n", {"adamw_8bit", "bf16"}),
    ("llama-3.1-8b", "1x H100-SXM", "train: {}\n", {"adamw_8bit", "bf16"}),
    ("llama-3.1-8b", "8x A100-80GB", LARGE, set()),
    ("llama-3.1-8b", "1x RTX-4090", "method: lora\n", set()),
]


@pytest.mark.parametrize(("model", "hardware", "text", "expected"), ADVISED)
def test_what_would_help_is_planned_before_it_is_named(model, hardware, text, expected):
    made = plan(model, hardware, text, num_rows=100_000)
    of_train = [one for one in made.changes if any(key.startswith("train.") for key in one.sets)]
    assert {value for one in of_train for value in one.sets.values()} == expected
    for one in of_train:
        (key, value), *more = ((key.removeprefix("train."), value) for key, value in one.sets.items())
        assert not more
        assert "drawback: " in one.sentence
        stated = text.replace("train: {", f"train: {{{key}: {value}, ")
        again = plan(model, one.hardware, stated, num_rows=100_000).best
        assert str(getattr(again.execution, key)) == value
        assert again.time.step_seconds <= 1.1 * one.step_seconds
    assert plan_from_json(made.to_json()) == made


def test_8_bit_adam_on_two_nodes_is_named_with_the_figures_of_both():
    asked = "data: {max_length: 4096}\ntrain: {global_batch_size: 64}\n"
    changes = plan("llama-3-70b", "2 x 8x H100-SXM", asked, num_rows=100_000).changes
    (change,) = [one for one in changes if "optimizer" in one.name]
    assert "16 s a step (16.1k tokens/s) and $357.61 in place of 23 s (11.5k tokens/s) and $500.06" in change.sentence
    assert "it rounds the moments of the weights to 8 bits" in change.sentence


def test_half_the_gpus_that_are_as_fast_have_no_drawback():
    (half,) = plan("llama-3.1-8b", "4 x 8x B200", "method: lora\n").changes
    assert half.name == "half the GPUs (2 x 8x B200)" and half.drawback is None and "drawback" not in half.sentence
    small = plan("qwen2.5-0.5b", "2x RTX-4090", "data: {max_length: 256}\ntrain: {global_batch_size: 32}\n")
    assert small.changes[-1].sentence.endswith("; drawback: the run takes longer")


def test_what_if_has_a_row_for_each_change_and_says_why_one_has_none():
    made = plan("llama-3.1-8b", "2x RTX-3090", "method: lora\ntrain: {max_steps: 100}\n", asks_what_if=True)
    rows = {one.name: one for one in made.what_if}
    names = ["as asked", "batch doubled", "r 64", "rows of 2,048 tokens", "one GPU fewer", "8-bit Adam", "packing"]
    assert list(rows) == names
    assert rows["as asked"].step_seconds == made.best.time.step_seconds
    assert rows["batch doubled"].step_seconds > 1.5 * made.best.time.step_seconds
    assert rows["one GPU fewer"].hardware == "1x RTX-3090"
    assert rows["packing"].reason == "lengths of rows are not known: name data.path"
    assert plan_from_json(made.to_json()) == made


def anywhere(method, **keys):
    asks, model = job(method=method, goal="cheapest", **keys), find_model("llama-3.1-8b", offline=True)
    return best_of_catalogue(asks, model=model, kinds=[*filter(None, offered_hardware(most=8))], known=(20_000, None))


@pytest.mark.slow
def test_eight_gpus_for_minutes_are_not_the_cheapest_and_one_offer_alone_does_not_win():
    for method in ("lora", "full"):
        best = {goal: one for one in anywhere(method).offers.options for goal in one.best_for}
        assert best["cheapest"].num_gpus <= 2
        winners = (best["cheapest"], best["fastest"])
        clusters = [parse_hardware(one.hardware) for one in winners]
        assert all(num_offers(one) > 1 and "bfloat16" in one.gpu.dense_flops for one in clusters)
        assert not any({"pp", "mp", "tp"} & {*one.strategy.split(" x ")} for one in winners)
    (less,) = [one for one in anywhere("full").changes if "hardware" in one.sets]
    assert less.sets == {"train.optimizer": "adamw_8bit", "train.precision": "bf16", "hardware": less.hardware}
    assert less.capacity_bytes < 48 * 2**30


@pytest.mark.slow
def test_starting_and_the_least_charge_are_stated_in_the_job():
    usual, there = (anywhere("lora", rent=rent).offers for rent in ({}, {"boot_minutes": 0, "minimum_minutes": 240}))
    usual, there = ({one.hardware: one for one in some.options} for some in (usual, there))
    card, again = usual["1x RTX-4090"], there["1x RTX-4090"]
    assert card.total_seconds - again.total_seconds == pytest.approx(300)
    assert again.typical_usd == pytest.approx(4 * again.typical_usd_per_hour)
    assert "at least 240 min are charged" in anywhere("lora", rent={"minimum_minutes": 240}).offers.start_up


def test_one_gpu_that_is_too_small_hears_of_qlora_and_of_the_smallest_that_fit():
    advice = " | ".join(plan("llama-3.1-8b", "1x RTX-4090", "").advice)
    assert "method: qlora would fit; it rounds the frozen weights to 4 bits" in advice
    assert "smallest single GPUs that fit with float32 masters and adamw, without offload: 1x H200, 1x B200" in advice
    adapters = " | ".join(plan("llama-3-70b", "1x L4", "method: lora\ntrain: {offload: none}\n").advice)
    assert "method: qlora needs 4 GPUs (4x L4)" in adapters
