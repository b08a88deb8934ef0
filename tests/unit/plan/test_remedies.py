"""What is advised has been tried: it helps, and less of it does not."""

import pytest

from tests.unit.plan.asking import plan


@pytest.mark.parametrize("count", [1, 4, 5])
def test_advice_names_the_first_larger_machine_on_offer_that_fits(count):
    text = "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"
    assert "8x RTX-A5000 would fit" in plan("qwen2.5-7b", f"{count}x RTX-A5000", text).advice
    assert plan("qwen2.5-7b", "4x RTX-A5000", text).chosen is None


def test_several_machines_are_advised_only_where_a_fabric_connects_them_or_the_question_names_several():
    for hardware, advised in (("8x RTX-4090", False), ("2 x 8x RTX-4090", True), ("8x A100-80GB", True)):
        advice = plan("llama-3-70b", hardware, "train: {offload: none, precision: fp32}\n").advice
        assert any(" x 8x " in one for one in advice) == advised, hardware


def test_advice_names_no_more_nodes_than_are_needed():
    text = "data: {max_length: 256}\ntrain: {global_batch_size: 1, offload: none}\n"
    assert "11 x 8x H100-SXM would fit" in plan("llama-3.1-405b", "8x H100-SXM", text).advice
    assert plan("llama-3.1-405b", "11 x 8x H100-SXM", text).chosen is not None
    assert plan("llama-3.1-405b", "10 x 8x H100-SXM", text).chosen is None


def test_numbers_on_which_only_a_pipeline_fits_are_not_passed_over():
    text = "method: full\ndata: {max_length: 2048}\ntrain: {global_batch_size: 16, precision: fp32, offload: none}\n"
    advice = plan("deepseek-v2-lite", "2 x 10x RTX-3060", text).advice
    assert any(sentence.startswith("4 x 10x RTX-3060 would fit") for sentence in advice)
    assert plan("deepseek-v2-lite", "4 x 10x RTX-3060", text).chosen is not None


def test_nothing_is_advised_where_what_is_stated_fits_nowhere():
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
    assert obeyed.chosen is not None
    assert obeyed.best.memory.peak_high_bytes <= 24 * 2**30
    assert not any("target_modules" in one for one in obeyed.advice)
    on_host = plan("Qwen/Qwen3-30B-A3B", "1x RTX-4090", text.replace(", offload: none", ""))
    assert any(f"target_modules: {names} would take" in one.sentence for one in on_host.changes)
