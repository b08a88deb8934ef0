"""What is said of one that fits and was not chosen is what makes it worse."""

from __future__ import annotations

from tests.unit.plan.asking import plan


def reasons(model: str, hardware: str, text: str) -> dict[str, str]:
    return {one.strategy: one.reason for one in plan(model, hardware, text).rejected}


def test_padding_is_named_where_ranks_do_not_divide_the_batch():
    found = reasons("llama-3.1-8b", "7x A100-80GB", "method: full\ntrain: {global_batch_size: 8}\n")
    assert found["zero2"].endswith("its ranks go through 14 sequences a step, padding among them, against 8")


def test_the_same_work_is_not_called_smaller():
    text = "method: full\nlayout: [pp, zero2, fsdp]\ntrain: {global_batch_size: 7}\n"
    assert reasons("llama-3.1-8b", "7x A100-80GB", text)["fsdp"].endswith(
        "what it moves takes the GPU's time beside the same work"
    )


def test_work_in_slices_is_called_smaller():
    text = "method: lora\ndata: {max_length: 2048}\n"
    assert reasons("llama-3.1-8b", "2x A100-80GB-SXM", text)["tp"].endswith(
        ("its pieces of work are smaller, and use the GPU less well", "GPUs do nothing but send, against 0 %")
    )


def test_what_takes_as_long_is_not_called_slower():
    text = "method: lora\ndata: {max_length: 8192}\ntrain: {global_batch_size: 1, gradient_checkpointing: selective}\n"
    assert reasons("deepseek-v2-lite", "5x L4", text)["pp"] == "takes as long, and mp is simpler"
