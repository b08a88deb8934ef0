"""Peaks of many executions at once are those of one at a time, and many a second."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.inventory import take_inventory
from shardwise.plan.peaks import Peaks
from shardwise.spec.execution import Execution
from shardwise.spec.layout import Layout
from tests.speed import quiet_seconds
from tests.unit.plan.asking import TINY, execution, job, memory, shape

HARDWARE = "1x H100-SXM"


def peaks(asked, model, hardware=HARDWARE):
    cluster = parse_hardware(hardware)
    return Peaks(asked, model=model, cluster=cluster, inventory=take_inventory(asked, model))


AXIS = (1, 2, 3)
LAYOUTS = {
    "dp_replicate": AXIS,
    "dp_shard": (*AXIS, 7),
    "tp": (1, 2, 4),
    "pp": AXIS,
    "cp": (1, 2),
    "schedule": ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble"),
    "min_num_params": (0, 0, 100_000, 10_000_000),
}
SHARDINGS = ({}, {"zero_stage": 1, "reshard_after_forward": False}, {"zero_stage": 2, "reshard_after_forward": False})
OPTIONS = {
    "micro_batch_size": range(1, 41),
    "gradient_accumulation_steps": range(1, 10),
    "gradient_checkpointing": ("none", "selective", "full"),
    "offload": ("none", "none", "parameters", "optimizer"),
    "precision": ("mixed", "bf16", "fp32"),
    "optimizer": ("adamw", "adamw_foreach", "adamw_8bit", "sgd", "adafactor"),
    "loss": ("full", "chunked"),
    "attn_implementation": ("sdpa", "eager", "flash_attention_2"),
}
layouts = st.builds(
    lambda sharding, keys: Layout(**sharding, **keys),
    st.sampled_from(SHARDINGS),
    st.fixed_dictionaries({key: st.sampled_from(values) for key, values in LAYOUTS.items()}),
)
options = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in OPTIONS.items()})
#: Every second block has experts.
MIXED = {
    **TINY,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 2,
}


@settings(max_examples=300)
@given(layouts, options, st.sampled_from(["full", "lora", "qlora"]), st.booleans())
def test_a_peak_among_many_is_the_peak_alone(layout, keys, method, tied):
    model = shape(num_hidden_layers=7, vocab_size=501, tie_word_embeddings=tied)
    asked = job(method=method, data={"max_length": 200})
    alone = memory(asked, model, layout, **keys)
    assert peaks(asked, model).high_bytes(execution(layout, **keys)) == pytest.approx(alone.peak_high_bytes, abs=64)
    assert alone.peak_low_bytes <= alone.peak_bytes <= alone.peak_high_bytes


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("config", [TINY, MIXED], ids=["alike", "experts in every second block"])
def test_what_is_remembered_of_one_execution_is_never_taken_for_another(method, config):
    draw, model = random.Random(method), shape(config, num_hidden_layers=7)
    adapters = {"lora": {"target_modules": ["q_proj", "o_proj"]}} if method == "lora" else {}
    asked = job(method=method, data={"max_length": 200}, **adapters)
    found = peaks(asked, model)
    for _ in range(250):
        degrees = {key: draw.choice(values) for key, values in LAYOUTS.items()}
        layout = Layout(**draw.choice(SHARDINGS), **degrees)
        keys = {key: draw.choice(values) for key, values in OPTIONS.items()}
        alone = memory(asked, model, layout, **keys)
        assert found.high_bytes(execution(layout, **keys)) == pytest.approx(alone.peak_high_bytes, abs=64), (
            layout,
            keys,
        )


def test_at_least_5000_memory_forecasts_a_second_are_made_on_one_core():
    """Of executions of which none is left out by a bound: what the exhaustive part of a search costs."""
    model = find_model("llama-3.1-405b", offline=True)
    candidates = list(_candidates())
    limit = len(candidates) / 5000

    def forecast():
        found = peaks(job(), model, "128x 8x H100-SXM")
        for candidate in candidates:
            found.high_bytes(candidate)

    assert quiet_seconds(forecast, limit=limit) < limit


def _candidates():
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8, 16):
            for shard in (8, 16, 32, 64):
                layout = Layout(dp_replicate=1024 // (tp * pp * shard) or 1, dp_shard=shard, tp=tp, pp=pp)
                for recompute in ("none", "selective", "full"):
                    for size in (1, 2, 3, 4, 6, 8, 12, 16):
                        yield Execution(
                            layout=layout,
                            micro_batch_size=size,
                            gradient_accumulation_steps=-(-64 // size),
                            gradient_checkpointing=recompute,
                            loss="chunked",
                        )
