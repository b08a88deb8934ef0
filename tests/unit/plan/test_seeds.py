"""Rules of thumb and reported runs, where no other file tests them; docs/seeds.md explains them."""

import pytest

from shardwise.plan.time.step import forecast_time
from shardwise.plan.work.inventory import take_inventory
from tests.unit.plan.asking import Layout, execution, find_model, held, job, parse_hardware, plan, shape, work


def test_a_64th_is_trained_by_lora_and_16_bits_take_8_bytes_per_parameter() -> None:
    model = shape(hidden_size=1024, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=8)
    trained = take_inventory(job(method="lora", lora={"r": 8, "target_modules": ["q_proj"]}), model).trained_elements
    assert trained * 64 == 3 * 1024 * 1024
    model = find_model("llama-3-8b", offline=True)
    (all_of_it,) = held(job(), model, precision="bf16")
    states = all_of_it.weights + all_of_it.gradients + all_of_it.optimizer
    assert states == pytest.approx(64.2e9, rel=0.01)
    assert 8 * model.block_parameters == pytest.approx(56e9, rel=0.01)
    assert states - 8 * model.block_parameters == pytest.approx(8 * 2 * model.embedding_parameters, rel=0.01)


@pytest.mark.parametrize(("model", "batch", "chosen"), [("tinyllama-1.1b", 128, "ddp"), ("codellama-34b", 64, "fsdp")])
def test_of_the_strategies_that_were_tried_the_one_that_was_fastest_is_chosen(model, batch, chosen):
    text = f"method: lora\nlayout: [mp, ddp, fsdp]\ntrain: {{global_batch_size: {batch}}}\n"
    answer = plan(model, "4x RTX-6000-Ada", text, num_rows=1024)
    assert answer.best.execution.layout.strategy == chosen
    assert {candidate.execution.layout.strategy for candidate in answer.candidates} == {"mp", "ddp", "fsdp"}


def test_a_pipeline_over_pci_express_is_not_forecast_without_its_bubble():
    text = "method: lora\nlayout: pp\ntrain: {global_batch_size: 64, micro_batch_size: 16}\n"
    coarse = plan("codellama-34b", "4x RTX-6000-Ada", text.replace("64,", "64, gradient_checkpointing: full,")).best
    fine = plan("codellama-34b", "4x RTX-6000-Ada", "method: lora\nlayout: pp\ntrain: {global_batch_size: 64}\n").best
    assert coarse.execution.gradient_accumulation_steps == 4
    assert coarse.time.gpu_utilization == pytest.approx(4 / 7, rel=0.1)
    assert fine.execution.gradient_accumulation_steps == 64
    assert 0.9 < fine.time.gpu_utilization < 64 / 67 * 1.02


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


@pytest.mark.parametrize(("shards", "tp", "left"), [(8, 4, 1139 / 1614), (4, 8, 876 / 1614)])
def test_slices_cost_what_they_were_measured_to(shards, tp, left):
    """torchtitan's Qwen3-32B, rows of 4096, eager, H100: eight slices do half of what none does."""
    keys = {"gradient_checkpointing": "full", "attn_implementation": "flash_attention_2", "loss": "full"}
    sliced = rate("qwen3-32b", "4 x 8x H100-SXM", Layout(dp_shard=shards, tp=tp), 4096, micro=16, **keys)
    whole = rate("qwen3-32b", "8x H100-SXM", Layout(dp_shard=8), 4096, micro=2, **keys)
    assert sliced / whole == pytest.approx(left, rel=0.15)


def test_experts_with_few_tokens_each_take_longer_than_their_products_alone():
    """prime-rl's trainer, Qwen3-30B-A3B on eight H200, rows of 16,384: 35,026 tokens/s."""
    keys = {"gradient_checkpointing": "full", "attn_implementation": "flash_attention_3", "compile": True}
    found = rate("qwen3-30b-a3b", "8x H200", Layout(dp_shard=8), 16384, steps=2, **keys)
    assert found == pytest.approx(35026 / 8, rel=0.15)
