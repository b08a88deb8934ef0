"""Forecasts of speed beside runs that others published, by the kernel that runs, slices, and experts."""

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.time.step import forecast_time
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, job, work


def rate(model, hardware, layout, length, *, micro=1, steps=1, **keys):
    """Tokens per second and GPU."""
    batch = micro * steps * layout.data_world_size
    asked = job(data={"max_length": length}, method="full", train={"global_batch_size": batch})
    ran = execution(layout, micro_batch_size=micro, gradient_accumulation_steps=steps, precision="mixed", **keys)
    made = work(asked, find_model(model, offline=True), ran, hardware)
    return forecast_time(made).tokens_per_second / parse_hardware(hardware).num_gpus


@pytest.mark.parametrize(("attention", "model", "seconds"), [("sdpa", "qwen3-8b", 364), ("sdpa", "qwen3-32b", 1295)])
def test_a_row_of_a_million_tokens_takes_what_cudnn_takes_on_hopper(attention, model, seconds):
    """TRL's trainer, context parallel over eight H100 (trl-1m-2026)."""
    keys = {"gradient_checkpointing": "offloaded", "attn_implementation": attention}
    forecast = 2**20 / 8 / rate(model, "8x H100-SXM", Layout(cp=8), 2**20, **keys)
    assert forecast == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize(
    ("layout", "left"), [(Layout(dp_shard=8, tp=4), 1139 / 1614), (Layout(dp_shard=4, tp=8), 876 / 1614)]
)
def test_slices_cost_what_they_were_measured_to(layout, left):
    """torchtitan's Qwen3-32B, 4096 tokens a row, eager, H100 (torchtitan-commits-2026): at eight slices a GPU does half
    of what it does with none."""
    keys = {"gradient_checkpointing": "full", "attn_implementation": "flash_attention_2", "loss": "full"}
    sliced = rate("qwen3-32b", "4 x 8x H100-SXM", layout, 4096, micro=16, **keys)
    whole = rate("qwen3-32b", "8x H100-SXM", Layout(dp_shard=8), 4096, micro=2, **keys)
    assert sliced / whole == pytest.approx(left, rel=0.15)


def test_experts_with_few_tokens_each_take_longer_than_their_products_alone():
    """prime-rl's trainer, Qwen3-30B-A3B in full on eight H200, 16,384 tokens a row: 35,026 tokens/s."""
    keys = {"gradient_checkpointing": "full", "attn_implementation": "flash_attention_3", "compile": True}
    found = rate("qwen3-30b-a3b", "8x H200", Layout(dp_shard=8), 16384, steps=2, **keys)
    assert found == pytest.approx(35026 / 8, rel=0.15)
