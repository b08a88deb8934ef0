"""What ranks hold between steps, under products of axes too: rules of thumb, and the truth."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise import api
from shardwise.catalog.models import find_model, known_models
from shardwise.plan.work.in_flight import flights, pairs_in_flight
from shardwise.spec.job.keys import TrainSpec
from shardwise.spec.layout.schedule import actions
from shardwise.spec.model.flops import model_flops_per_token
from shardwise.train.optim import build_optimizer
from shardwise.units import GIB
from tests.unit.plan.asking import Layout, elements, held, job, memory, plan, shape, take_inventory
from tests.unit.spec.test_layout import in_flight


def test_four_bit_storage_takes_4_bits_and_a_scale_for_each_block_and_of_experts_a_level() -> None:
    model = find_model("llama-2-7b", offline=True)
    (one,) = held(job(method="qlora"), model)
    matrices = 32 * sum(m.num_parameters for m in model.matrices)
    adapters = take_inventory(job(method="qlora"), model).trained_elements
    rest = 2 * (model.num_parameters - matrices) + 4 * adapters
    assert (one.weights - rest) * 8 / matrices == 4.125
    model, lora = find_model("qwen3-30b-a3b", offline=True), {"target_modules": ["q_proj"]}
    both = (job(method="qlora", lora=lora, train={"quantize_experts": on}) for on in (True, False))
    few, wide = (held(asked, model)[0].weights for asked in both)
    experts = [m for m in model.matrices if m.stacked]
    of_one = sum(m.rows * m.columns / 2 + m.rows * m.columns / 64 for m in experts)
    levels = sum(4 * (-(-m.rows * m.columns // 64 // 256) + 1) for m in experts)
    assert wide - few == 48 * 128 * (2 * sum(m.rows * m.columns for m in experts) - of_one - levels)


def test_sgd_holds_no_states_and_one_with_momentum():
    model = shape()
    assert held(job(), model, optimizer="sgd")[0].optimizer == 0
    momentum = job(train={"momentum": 0.9, "optimizer": "sgd"})
    assert held(momentum, model, optimizer="sgd")[0].optimizer == 4 * model.num_parameters


@pytest.mark.parametrize("name", known_models())
def test_every_parameter_of_a_model_is_in_the_inventory_once(name):
    model = find_model(name, offline=True)
    assert elements(take_inventory(job(), model)) == model.num_parameters


def test_what_is_trained_as_a_copy_has_a_gradient_a_frozen_original_and_no_adapter():
    asked, model = job(method="lora", lora={"modules_to_save": ["mlp", "norm"]}), shape()
    inventory, plain = take_inventory(asked, model), take_inventory(job(method="lora"), model)
    copied = {m.name for m in model.matrices if m.name.startswith("mlp.")}
    assert len(copied) == 3
    assert plain.adapted - inventory.adapted == copied
    assert copied | {"input_layernorm", "post_attention_layernorm", "final_norm"} <= inventory.trained_names
    (_, block), (_, without) = inventory.blocks[0], plain.blocks[0]
    in_block = sum(m.num_parameters for m in model.matrices if m.name in copied) + 2 * model.hidden_size
    adapters = sum(16 * (m.rows + m.columns) for m in model.matrices if m.name in copied)
    assert block.elements - without.elements == in_block - adapters
    assert inventory.root.elements - plain.root.elements == model.hidden_size


def test_flops_of_a_token_are_6_a_parameter_and_12_of_the_width_for_each_token_before() -> None:
    model = find_model("llama-3.1-8b", offline=True)
    products = model.num_parameters - model.embedding_parameters - 65 * model.hidden_size
    assert model_flops_per_token(model, length=1000, lora=None) == 6 * products + 12 * 32 * 4096 * 1000


def test_flops_of_a_copy_are_those_of_its_gradients_without_adapters() -> None:
    model = shape()
    flops = [
        model_flops_per_token(model, length=64, lora=job(method="lora", lora=lora).adapters)
        for lora in ({}, {"modules_to_save": ["mlp", "lm_head"]})
    ]
    matrices = [m for m in model.matrices if m.name.startswith("mlp.")]
    gradients = model.num_layers * sum(m.rows * m.columns for m in matrices) + model.embedding_parameters
    adapters = model.num_layers * sum(16 * (m.rows + m.columns) for m in matrices)
    assert flops[1] - flops[0] == 2 * gradients - 6 * adapters


@pytest.mark.parametrize(("name", "unrounded", "rounded"), [("qwen2.5-7b", 56.7, 107.9), ("qwen2.5-14b", 110.0, 190.0)])
def test_page_locked_memory_of_the_host_is_counted_in_powers_of_two(name, unrounded, rounded):
    """Copies and their gradients in float32; optimizer states are not page-locked."""
    model = find_model(name, offline=True)
    (plain,), (one,) = held(job(), model), held(job(), model, offload="optimizer")
    assert 2 * plain.weights / GIB == pytest.approx(unrounded, rel=0.005)
    assert (one.on_host - plain.optimizer) / GIB == pytest.approx(rounded, rel=0.005)
    (streamed,) = held(job(), model, offload="parameters")
    assert streamed.on_host == one.on_host, "of one rank: weights and gradients, in the same type"


def _said(*overrides: str) -> str:
    made = api.plan(overrides=["train.optimizer=adamw_8bit", *overrides])
    return next(reason for reason in made.best.reasons if reason.startswith("adamw_8bit"))


@pytest.mark.parametrize(
    ("model", "precision", "share", "takes"),
    [
        ("qwen2.5-0.5b", "mixed", "21.2", "3.1 GiB of states in all, where adamw has 3.7 GiB"),
        ("qwen2.5-0.5b", "bf16", "21.2", "3.1 GiB of states in all, where adamw has 1.8 GiB"),
        ("llama-3.2-1b", "mixed", "100", "2.3 GiB of states in all, where adamw has 9.2 GiB"),
    ],
)
def test_a_plan_says_how_much_is_in_8_bits_and_what_it_saves(model, precision, share, takes) -> None:
    said = _said(f"model={model}", "method=full", "hardware=1x H100-SXM", f"train.precision={precision}")
    rest = "norms, biases and rows that are no multiple of 256 stay in 32 bits"
    assert said == f"adamw_8bit keeps {share} % of the moments in 8 bits, {takes}; {rest}"
    assert not any("8 bits" in reason for reason in plan(model, "1x H100-SXM").best.reasons), "of another optimizer"


@pytest.mark.parametrize("sizes", [(192, 512), (256, 512), (192, 320)], ids=str)
def test_the_share_is_that_of_the_trainers_own_states(sizes, tmp_path) -> None:
    sides = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    config = AutoConfig.for_model("qwen2", hidden_size=sizes[0], intermediate_size=sizes[1], **sides)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = build_optimizer([*model.named_parameters()], train=TrainSpec(), name="adamw_8bit")
    model(torch.ones(1, 8, dtype=torch.long), labels=torch.ones(1, 8, dtype=torch.long)).loss.backward()
    optimizer.step()
    moments = [state["state1"] for state in optimizer.state.values()]
    short = sum(one.numel() for one in moments if one.dtype == torch.uint8)
    share = re.match(r"adamw_8bit keeps ([\d.]+) %", _said(f"model={tmp_path}", "method=full", "hardware=cpu:1"))
    assert float(share[1]) == pytest.approx(100 * short / sum(one.numel() for one in moments), rel=5e-3)


SCHEDULES = ["sequential", "gpipe", "1f1b", "interleaved", "zero_bubble"]
axis = st.integers(1, 3)
sizes = {"dp_replicate": axis, "dp_shard": st.integers(1, 4), "tp": st.sampled_from([1, 2, 4]), "pp": axis}
layouts = st.builds(Layout, **sizes, schedule=st.sampled_from(SCHEDULES))


def odd(**changes):
    return shape(vocab_size=101, hidden_size=32, intermediate_size=37, num_attention_heads=4, **changes)


@given(layouts)
def test_every_rank_stands_in_exactly_one_forecast(layout):
    forecast = memory(job(), odd(), layout)
    assert sorted([rank for group in forecast.ranks for rank in group.ranks]) == list(range(layout.world_size))
    assert forecast.peak_bytes == max(group.peak_bytes for group in forecast.ranks)


@given(layouts, st.sampled_from(["full", "lora"]), st.booleans())
def test_ranks_hold_the_model_and_what_is_copied_and_nothing_else(layout, method, tied):
    model, asked = odd(tie_word_embeddings=tied), job(method=method)
    inventory = take_inventory(asked, model)
    cut = inventory.over_all(lambda unit: sum(tensor.elements for tensor in unit.tensors if tensor.cut))
    sliced = cut * layout.dp_replicate
    whole = (elements(inventory) * layout.dp_replicate - sliced) * layout.tp
    if tied and layout.pp > 1:
        sliced += model.embedding_parameters * layout.dp_replicate  # the last stage has a copy of its own
    ranks = held(asked, model, layout, precision="fp32")
    assert sum(len(h.ranks(layout)) * h.weights for h in ranks) == 4 * (sliced + whole)


@given(st.sampled_from(SCHEDULES), st.integers(2, 6), st.integers(1, 20))
def test_micro_batches_in_flight_are_those_of_the_schedule(schedule, ranks, micros):
    layout = Layout(pp=ranks, schedule=schedule)
    for rank in range(ranks):
        order = actions(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros)
        assert pairs_in_flight(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros) == in_flight(order)
        first, *_ = flights(layout, pp=rank, num_micro_batches=micros)
        at_last_stage = in_flight(action for action in order if action.stage == layout.num_stages - 1)
        if rank == ranks - 1:
            assert first.heads >= at_last_stage
