"""Rules of thumb and reported runs, where no other file tests them; docs/seeds.md explains what differs.

Bytes per parameter and ZeRO: `test_memory_rules.py`; ratios of times: `test_time.py`.
"""

import pytest

from shardwise.catalog.models import find_model
from shardwise.plan.work.inventory import take_inventory
from tests.unit.plan.asking import held, job, plan, shape


def test_lora_of_rank_8_trains_a_64th_of_a_square_matrix_of_1024():
    model = shape(hidden_size=1024, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=8)
    trained = take_inventory(job(method="lora", lora={"r": 8, "target_modules": ["q_proj"]}), model).trained_elements
    assert trained * 64 == 3 * 1024 * 1024


def test_llama_3_8b_takes_8_bytes_per_parameter_in_16_bits_of_which_56_gb_are_its_blocks():
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
