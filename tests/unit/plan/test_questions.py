"""Questions that people with experience asked, and what the answer must be for them to believe it."""

from __future__ import annotations

import pytest

from tests.unit.plan.asking import plan

LARGE = "data: {max_length: 2048}\ntrain: {global_batch_size: 16}\n"

#: (model, hardware, job): the known recipe, which a forecast of no measured layout does not beat by little.
DDP_OR_FSDP = [
    ("llama-3.1-8b", "2x RTX-3090", "method: lora\n"),
    ("llama-3.1-8b", "2x RTX-3090", "method: lora\n" + LARGE),
    ("llama-3.1-8b", "2x RTX-3090", "method: lora\n" + LARGE.replace("2048", "4096")),
    ("llama-3.1-405b", "8x H200", "method: lora\n"),
    ("llama-3.1-405b", "8x H200", "method: lora\n" + LARGE),
    ("llama-3-70b", "4x RTX-3090", "method: qlora\n" + LARGE),
    ("llama-3.1-8b", "8x A100-80GB", "method: full\n" + LARGE),
    ("llama-3-70b", "2 x 8x H100-SXM", "method: full\n" + LARGE),
]


@pytest.mark.parametrize(("model", "hardware", "text"), DDP_OR_FSDP)
def test_data_parallel_is_chosen_without_weights_on_the_host(model, hardware, text):
    made = plan(model, hardware, text)
    best = made.best.execution
    assert best.layout.strategy in {"ddp", "zero1", "fsdp"}
    assert best.offload in {"none", "optimizer"}
    said = " ".join([*made.best.reasons, *made.advice])
    assert "offload parameters" not in said
    assert "offload: parameters" not in said


def test_70b_in_4_bits_on_two_cards_shares_its_weights():
    for text in ("method: qlora\n", "method: qlora\n" + LARGE, "method: qlora\ndata: {max_length: 512}\n"):
        assert plan("llama-3-70b", "2x RTX-3090", text).best.execution.layout.strategy == "fsdp"


def test_a_layout_that_is_a_quarter_faster_is_taken_though_no_gpu_measured_it():
    text = "method: lora\ndata: {max_length: 2048}\ntrain: {global_batch_size: 64}\n"
    made = plan("codellama-34b", "4x RTX-6000-Ada", text)
    assert made.best.execution.layout.strategy == "pp"
    fsdp = next(one for one in made.candidates if one.execution.layout.strategy == "fsdp")
    assert made.best.time.step_seconds < 0.76 * fsdp.time.step_seconds


def test_what_is_hardly_faster_is_not_mentioned_and_what_is_doubted_says_why():
    made = plan("llama-3.1-8b", "2x RTX-3090", "method: lora\n")
    assert not any("would be" in reason for reason in made.best.reasons)
    doubted = plan("llama-3.1-405b", "8x H200", "method: lora\n")
    (said,) = (reason for reason in doubted.best.reasons if "would be" in reason)
    assert said == "pp x tp would be 20 % faster; no GPU has measured such a layout, and fsdp is simpler"
