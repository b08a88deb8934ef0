"""Sentences of what does not fit: what they advise must be able to help."""

from __future__ import annotations

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


def test_zero1_counts_the_states_that_it_shards_once() -> None:
    """Of 8 GPUs each holds all weights and an eighth of the optimizer's states: sharding the rest helps."""
    made = plan("llama-3.1-8b", "8x L40S", "method: full\ntrain: {offload: none}\n")
    reason = next(one.reason for one in made.rejected if one.strategy == "zero1")
    assert "of it; shard them (fsdp)" in reason
    assert made.best is not None
