"""What is said of strategies that were not chosen, and advised where nothing fits: tried first."""

import re
from typing import Any

import pytest

from shardwise.plan.explain.reasons import what_it_does
from tests.unit.plan.asking import Layout, execution, plan

KEPT: dict[str, Any] = {"dp_shard": 2, "zero_stage": 2, "reshard_after_forward": False}
WORTH = "at the same tp and pp, context parallelism (cp: 2) is worth it from rows of "


@pytest.mark.parametrize("count", [1, 4, 5])
def test_advice_names_the_first_larger_machine_on_offer_that_fits(count):
    text = "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"
    assert "8x RTX-A5000 would fit" in plan("qwen2.5-7b", f"{count}x RTX-A5000", text).advice
    assert plan("qwen2.5-7b", "4x RTX-A5000", text).chosen is None


def test_as_many_machines_are_advised_as_are_needed_and_connected() -> None:
    for hardware, advised in (("8x RTX-4090", False), ("2 x 8x RTX-4090", True), ("8x A100-80GB", True)):
        advice = plan("llama-3-70b", hardware, "train: {offload: none, precision: fp32}\n").advice
        assert any(" x 8x " in one for one in advice) == advised, hardware
    text = "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"
    assert "11 x 8x H100-SXM would fit" in plan("llama-3.1-405b", "8x H100-SXM", text).advice
    assert plan("llama-3.1-405b", "11 x 8x H100-SXM", text).chosen is not None
    assert plan("llama-3.1-405b", "10 x 8x H100-SXM", text).chosen is None
    text = "method: full\ndata: {max_length: 2048}\ntrain: {global_batch_size: 16, precision: fp32, offload: none}\n"
    advice = plan("deepseek-v2-lite", "2 x 10x RTX-3060", text).advice
    assert any(sentence.startswith("4 x 10x RTX-3060 would fit") for sentence in advice)
    assert plan("deepseek-v2-lite", "4 x 10x RTX-3060", text).chosen is not None
    text = "method: full\nlayout: zero1\ndata: {max_length: 128}\ntrain: {global_batch_size: 7, offload: parameters}\n"
    made = plan("gemma-2-9b", "4x T4", text)
    assert made.best is None
    assert not any("would fit" in sentence for sentence in made.advice)


def test_a_plan_says_that_qlora_leaves_experts_wide():
    asked = "method: qlora\ntrain: {offload: none, quantize_experts: false}\n"
    assert (
        "qlora does not quantise experts that a block keeps in one tensor: 84.0 GiB of all weights stay in bfloat16"
    ) in plan("mixtral-8x7b", "2x H100-SXM", asked).best.reasons
    for other in ("lora", "full"):
        assert not any(
            "does not quantise" in one for one in plan("mixtral-8x7b", "8x H200-SXM", f"method: {other}\n").best.reasons
        )
    assert not any("does not quantise" in one for one in plan("llama-3.1-8b", "2x H100-SXM", asked).best.reasons)
    by_default = plan("mixtral-8x7b", "2x H100-SXM", "method: qlora\n").best
    assert not any("does not quantise" in one for one in by_default.reasons)


def test_inputs_on_the_host_are_advised_where_only_these_are_too_much():
    text = "method: lora\ndata: {max_length: 20480}\ntrain: {global_batch_size: 4, offload: none%s}\n"
    stated = "gradient_checkpointing: selective_offloaded"
    advised = f"train.{stated} would fit, with at least 36.3 GiB for each GPU in the host's memory"
    assert advised in plan("llama-3.1-8b", "1x RTX-4090", text % "").advice
    assert plan("llama-3.1-8b", "1x RTX-4090", text % f", {stated}").chosen is not None
    longer = plan("llama-3.1-8b", "1x RTX-4090", text.replace("20480", "65536") % "")
    assert any("checkpointing: offloaded would fit" in advice for advice in longer.advice)
    assert not any("selective_offloaded" in advice for advice in longer.advice)


def test_adapters_on_attention_alone_are_advised_where_those_of_experts_are_too_much():
    text = "method: qlora\ndata: {max_length: 1024}\ntrain: {global_batch_size: 8, offload: none}\n"
    names = "[q_proj, k_proj, v_proj, o_proj]"
    made = plan("Qwen/Qwen3-30B-A3B", "1x RTX-4090", text)
    assert made.chosen is None
    assert made.advice[0] == f"lora.target_modules: {names} would fit; experts stay as they are"
    obeyed = plan("Qwen/Qwen3-30B-A3B", "1x RTX-4090", f"{text}lora: {{target_modules: {names}}}\n")
    assert obeyed.best.memory.peak_high_bytes <= 24 * 2**30
    assert not any("target_modules" in one for one in obeyed.advice)
    on_host = plan("Qwen/Qwen3-30B-A3B", "1x RTX-4090", text.replace(", offload: none", ""))
    assert any(f"target_modules: {names} would take" in one.sentence for one in on_host.changes)


@pytest.mark.parametrize(
    ("model", "hardware", "advised"),
    [
        ("llama-3.1-8b", "4x H100-SXM", "shard them (fsdp)"),
        ("llama-3.1-8b", "1x H100-SXM", "shard them over more GPUs (fsdp), or use lora"),
        ("llama-3-70b", "4x RTX-6000-Ada", "shard them over more GPUs (fsdp), or use lora"),
    ],
)
def test_sharding_is_advised_where_shards_of_the_states_have_room(model: str, hardware: str, advised: str) -> None:
    made = plan(model, hardware, "method: full\ntrain: {offload: none}\n")
    reasons = {one.strategy: one.reason for one in made.rejected}
    unsharded = "single" if hardware.startswith("1x") else "ddp"
    assert reasons[unsharded].endswith(f"; {advised}")
    assert (made.best is None) == ("more GPUs" in advised)


@pytest.mark.parametrize(
    ("model", "hardware", "text"),
    [
        ("qwen2.5-7b", "5x RTX-A5000", "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"),
        (
            "qwen2.5-32b",
            "5x L40S",
            "data: {max_length: 512}\n"
            "train: {global_batch_size: 16, optimizer: adamw_8bit, precision: bf16, offload: none}\n",
        ),
        ("olmoe-1b-7b", "11x RTX-3090", "data: {max_length: 1000}\n"),
        ("qwen2.5-7b", "9x RTX-4090", "train: {micro_batch_size: 2, global_batch_size: 16}\ndata: {max_length: 2048}"),
    ],
)
def test_sharding_is_advised_where_it_helps_and_nowhere_else(model: str, hardware: str, text: str) -> None:
    told = [one.reason for one in plan(model, hardware, f"method: full\n{text}").rejected]
    shards = plan(model, hardware, f"method: full\nlayout: fsdp\n{text}").best is not None
    here, over_more = (
        any(words in reason for reason in told) for words in ("shard them (fsdp)", "shard them over more GPUs (fsdp)")
    )
    assert (here, over_more) == (shards, not shards)


def test_zero1_counts_the_states_that_it_shards_once() -> None:
    """Each of 8 GPUs holds all weights and an eighth of the states: sharding the rest helps."""
    made = plan("llama-3.1-8b", "8x L40S", "method: full\ntrain: {offload: none}\n")
    reason = next(one.reason for one in made.rejected if one.strategy == "zero1")
    assert "of it; shard them (fsdp)" in reason
    assert made.best is not None


@pytest.mark.parametrize("model", ["gemma-2-2b", "llama-3.2-1b"])
def test_chunks_are_advised_where_whole_logits_are_asked_for(model: str) -> None:
    """Also to heads that cap their logits, as Gemma 2's."""
    made = plan(model, "1x RTX-3060", "method: lora\ntrain: {loss: full, compile: false}\ndata: {max_length: 16384}\n")
    reason = next(one.reason for one in made.rejected if one.strategy == "single")
    assert "logits and their gradients are" in reason
    assert reason.endswith("of it; train with loss: chunked")


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


@pytest.mark.parametrize("layout", [Layout(pp=2), Layout(pp=2, schedule="sequential")])
def test_with_one_micro_batch_one_stage_works_at_a_time(layout: Layout) -> None:
    assert "in stages of which one works at a time" in what_it_does(execution(layout))


@pytest.mark.parametrize("hardware", ["4x L40S", "2 x 2x L40S"])
def test_nothing_is_said_of_links_that_a_stated_layout_must_do_with(hardware: str) -> None:
    """Over PCI Express and between nodes tensor parallel waits for most of its time."""
    made = plan("llama-3.2-1b", hardware, "method: lora\nlayout: {tp: 4}\n").best
    assert "tp: each GPU has a slice of each matrix" in made.reasons
    assert not any("fast" in reason for reason in made.reasons if reason.startswith("tp:"))


def test_with_the_hosts_memory_a_single_gpu_is_not_said_to_have_room_for_all() -> None:
    assert "with the host's memory beside it" in what_it_does(execution(offload="optimizer"))


def parted(text: str, model: str = "llama-3.1-8b", hardware: str = "8x H100") -> list[str]:
    made = plan(model, hardware, text, num_rows=1000)
    return [reason for reason in made.best.reasons if "parts (cp)" in reason or "context parallelism" in reason]


@pytest.mark.timeout(60)
def test_a_plan_says_from_which_length_parts_of_rows_are_worth_it() -> None:
    full = "method: full\ntrain: {global_batch_size: 64}\n"
    assert parted(full) == [f"{WORTH}16,384 tokens on, where it is 8 % faster"]
    stated = f"{full}data: {{max_length: 131072}}\nlayout: {{dp_shard: 4, cp: 2}}"
    assert parted(stated) == []
    assert parted(stated, hardware="8x A100-40GB") == [
        "rows of 131,072 tokens fit in parts (cp) alone; whole they do up to 65,536"
    ]
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
    units = {"%": 1, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+) (%|ms|s|min|h)", written))
