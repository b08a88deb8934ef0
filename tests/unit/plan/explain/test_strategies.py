"""What a plan says of a strategy under every layout of its name, and of one that was not chosen."""

import re
from typing import Any

import pytest

from shardwise.plan.explain.reasons import what_it_does
from tests.unit.plan.asking import Layout, execution, plan

KEPT: dict[str, Any] = {"dp_shard": 2, "zero_stage": 2, "reshard_after_forward": False}
WORTH = "at the same tp and pp, context parallelism (cp: 2) is worth it from rows of "


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        (Layout(tp=4), "tp: each GPU has a slice of each matrix"),
        (Layout(cp=4), "cp: each GPU has two parts of each sequence, and gathers the keys and values of all"),
        (Layout(dp_shard=4), "fsdp: weights, gradients and optimizer states are sharded; weights are gathered as they"),
        (Layout(**KEPT), "zero2: optimizer states and gradients are sharded; weights gathered for a forward stay for"),
        (Layout(dp_replicate=2, dp_shard=2), "hsdp: sharded inside groups of GPUs, and replicated between the groups"),
        (Layout(dp_replicate=2), "ddp: a whole copy fits on every GPU, so only gradients travel"),
        (Layout(dp_replicate=2, tp=2), "ddp: copies of the model work on different samples, and their gradients are"),
        (Layout(**KEPT, pp=2, schedule="zero_bubble"), "zero2: optimizer states are sharded; gathered weights and"),
        (Layout(pp=2), "pp: layers lie on different GPUs, in stages that work on different micro-batches at once"),
    ],
)
def test_a_strategy_is_told_what_it_does(layout: Layout, said: str) -> None:
    assert what_it_does(execution(layout, gradient_accumulation_steps=4)).startswith(said)


def test_one_micro_batch_and_the_hosts_memory_are_told() -> None:
    for schedule in ("1f1b", "sequential"):
        assert "in stages of which one works at a time" in what_it_does(execution(Layout(pp=2, schedule=schedule)))
    assert "with the host's memory beside it" in what_it_does(execution(offload="optimizer"))


@pytest.mark.parametrize("hardware", ["4x L40S", "2 x 2x L40S"])
def test_nothing_is_said_of_links_that_a_stated_layout_must_do_with(hardware: str) -> None:
    """Over PCI Express and between nodes tensor parallel waits for most of its time."""
    made = plan("llama-3.2-1b", hardware, "method: lora\nlayout: {tp: 4}\n").best
    assert "tp: each GPU has a slice of each matrix" in made.reasons
    assert not any("fast" in reason for reason in made.reasons if reason.startswith("tp:"))


@pytest.mark.parametrize(
    ("keys", "stays"),
    [("", True), (", adam_beta2: 0.99", False), (", optimizer: sgd", False), (", optimizer: adamw_8bit", False)],
)
def test_pure_bfloat16_says_what_it_rounds_away(keys: str, stays: bool) -> None:
    made = plan("llama-3.2-1b", "8x H100", f"method: full\ntrain: {{precision: bf16{keys}}}\n").best
    said = next(reason for reason in made.reasons if reason.startswith("precision bf16 keeps no float32 masters"))
    assert said.endswith("at adam_beta2 0.999 AdamW's second moments never fall either: 0.99 lets them") == stays


def parted(text: str, model: str = "llama-3.1-8b", hardware: str = "8x H100") -> list[str]:
    """Reasons of a plan that speak of parts of rows."""
    made = plan(model, hardware, text, num_rows=1000)
    return [reason for reason in made.best.reasons if "parts (cp)" in reason or "context parallelism" in reason]


@pytest.mark.timeout(60)
def test_a_plan_says_from_which_length_parts_of_rows_are_worth_it() -> None:
    full = "method: full\ntrain: {global_batch_size: 64}\n"
    assert parted(full) == [f"{WORTH}16,384 tokens on, where it is 8 % faster"]
    stated = f"{full}data: {{max_length: 131072}}\nlayout: {{dp_shard: 4, cp: 2}}"
    assert parted(stated) == []
    alone = "rows of 131,072 tokens fit in parts (cp) alone; whole they do up to 65,536"
    assert parted(stated, hardware="8x A100-40GB") == [alone]
    assert parted(f"{full}layout: {{dp_shard: 4, cp: 2}}") == []
    assert parted(f"{full}layout: cp") == []  # fits whole where weights are sharded
    assert parted(f"{full}layout: {{tp: 8}}") == []
    # Its positions end where whole rows fit.
    assert parted(full, model="tinyllama-1.1b") == []


@pytest.mark.timeout(60)
def test_auto_looks_at_parts_of_rows_where_they_are_long() -> None:
    for length, looked in ((8192, True), (4096, False)):
        made = plan("llama-3.1-8b", "2x H100", f"method: lora\ndata: {{max_length: {length}}}", num_rows=1000)
        found = [one for one in (*made.candidates, made.best) if one and one.execution.layout.cp > 1]
        assert bool(found) == looked
        assert not any(one.not_trained for one in found)
        said = "cp = 2 would leave a rank less than 4,096 tokens of a row, which is not worth it"
        assert any(said in one.reason for one in made.rejected) == (not looked)


def reasons(model: str, hardware: str, text: str) -> dict[str, str]:
    return {one.strategy: one.reason for one in plan(model, hardware, text).rejected}


def test_what_makes_one_worse_is_named_as_it_is() -> None:
    text = "method: lora\nlayout: [pp, zero2]\ntrain: {global_batch_size: 7}\n"
    found = reasons("llama-3.1-8b", "6x A100-80GB", text)
    assert found["zero2"].endswith("its ranks go through 12 sequences a step, padding among them, against 7")
    found = reasons("llama-3.1-8b", "8x A100-SXM-80GB", "layout: [zero2, fsdp, hsdp]\n")
    assert found["hsdp"].endswith("what it moves takes the GPU's time beside the same work")
    text = "method: lora\ndata: {max_length: 2048}\n"
    assert reasons("llama-3.1-8b", "2x A100-80GB-SXM", text)["tp"].endswith(
        ("its pieces of work are smaller, and use the GPU less well", "GPUs do nothing but send, against 0 %")
    )
    text = "method: lora\ndata: {max_length: 8192}\ntrain: {global_batch_size: 1, gradient_checkpointing: selective}\n"
    text += "layout: [mp, pp]\n"
    assert reasons("deepseek-v2-lite", "5x L4", text)["pp"] == "takes as long, and mp is simpler"


@pytest.mark.parametrize(
    ("model", "hardware", "text"),
    [
        ("mixtral-8x7b", "4x A100-80GB", "method: full\ntrain: {global_batch_size: 7}\n"),
        ("pythia-1.4b", "2 x 4x L40S", "data: {max_length: 1000}\ntrain: {global_batch_size: 7}\n"),
        ("tinyllama-1.1b", "8x L4", "method: full\ntrain: {global_batch_size: 1}\n"),
        ("llama-3.1-8b", "6x H100-SXM", "method: full\ngoal: cheapest\ntrain: {global_batch_size: 16}\n"),
    ],
)
def test_more_is_said_than_the_chosen_one_has(model: str, hardware: str, text: str) -> None:
    """What is named as taking longer has a larger figure than stands against it."""
    told = [
        re.search(r"(?::| together .+) for (.+?)(?: of the time .+?,)? against (.+?)(?: of a step .+)?$", reason)
        for reason in reasons(model, hardware, text).values()
    ]
    figures = [found.groups() for found in told if found]
    assert figures
    assert all(_figure(mine) > _figure(best) for mine, best in figures), figures


def _figure(written: str) -> float:
    """Of a share, or of a duration."""
    units = {"%": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+) (%|ms|s|min|h)", written))
