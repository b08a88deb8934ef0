"""Sentences of what does not fit: what they advise must be able to help."""

import pytest

from tests.unit.plan.asking import plan


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
        (
            "qwen2.5-7b",
            "9x RTX-4090",
            "train: {micro_batch_size: 2, global_batch_size: 16}\ndata: {max_length: 2048}\n",
        ),
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
    """Of 8 GPUs each holds all weights and an eighth of the optimizer's states: sharding the rest helps."""
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
