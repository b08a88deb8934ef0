"""What is advised where a job does not fit has been tried: it helps, and less of it does not."""

import pytest

from tests.unit.plan.asking import plan

SMALLEST = "train: {global_batch_size: 16, optimizer: adamw_8bit, precision: bf16, offload: none}\n"


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
    def said(model, hardware, text):
        return [one for one in plan(model, hardware, text).best.reasons if "does not quantise" in one]

    asked = "method: qlora\ntrain: {offload: none, quantize_experts: false}\n"
    assert said("mixtral-8x7b", "2x H100-SXM", asked) == [
        "qlora does not quantise experts that a block keeps in one tensor: 84.0 GiB of all weights stay in bfloat16"
    ]
    for other in ("lora", "full"):
        assert said("mixtral-8x7b", "8x H200-SXM", f"method: {other}\n") == []
    assert said("llama-3.1-8b", "2x H100-SXM", asked) == said("mixtral-8x7b", "2x H100-SXM", "method: qlora\n") == []


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
    names, made = "[q_proj, k_proj, v_proj, o_proj]", plan("Qwen/Qwen3-30B-A3B", "1x RTX-4090", text)
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
        ("qwen2.5-32b", "5x L40S", f"data: {{max_length: 512}}\n{SMALLEST}"),
        ("olmoe-1b-7b", "11x RTX-3090", "data: {max_length: 1000}\n"),
        ("qwen2.5-7b", "9x RTX-4090", "train: {micro_batch_size: 2, global_batch_size: 16}\ndata: {max_length: 2048}"),
    ],
)
def test_sharding_is_advised_where_it_helps_and_nowhere_else(model: str, hardware: str, text: str) -> None:
    told = [one.reason for one in plan(model, hardware, f"method: full\n{text}").rejected]
    shards = plan(model, hardware, f"method: full\nlayout: fsdp\n{text}").best is not None
    assert any("shard them (fsdp)" in reason for reason in told) == shards
    assert any("shard them over more GPUs (fsdp)" in reason for reason in told) != shards


def test_zero1_counts_the_states_that_it_shards_once() -> None:
    """Each of 8 GPUs holds all weights and an eighth of the states: sharding the rest helps."""
    made = plan("llama-3.1-8b", "8x L40S", "method: full\ntrain: {offload: none}\n")
    assert "of it; shard them (fsdp)" in next(one.reason for one in made.rejected if one.strategy == "zero1")
    assert made.best is not None


@pytest.mark.parametrize("model", ["gemma-2-2b", "llama-3.2-1b"])
def test_chunks_are_advised_where_whole_logits_are_asked_for(model: str) -> None:
    """Also to heads that cap their logits, as Gemma 2's."""
    made = plan(model, "1x RTX-3060", "method: lora\ntrain: {loss: full, compile: false}\ndata: {max_length: 16384}\n")
    reason = next(one.reason for one in made.rejected if one.strategy == "single")
    assert "logits and their gradients are" in reason
    assert reason.endswith("of it; train with loss: chunked")
