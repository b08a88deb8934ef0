"""A smaller micro-batch never turns "fits" into "does not", as the search takes it; and where that is not so.

What is compared is the upper end of the forecast's interval, which decides whether a job fits.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwise.catalog.models import find_model
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import CHUNK_TOKENS
from tests.unit.plan.asking import job, memory, shape

SCHEDULES = ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble")
ZERO1 = {"zero_stage": 1, "reshard_after_forward": False}
ZERO2 = {"zero_stage": 2, "reshard_after_forward": False}

MODELS = {
    "8b": find_model("llama-3.1-8b", offline=True),
    "tied": find_model("llama-3.2-1b", offline=True),
    "tiny": shape(num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=16, vocab_size=997),
    "experts": find_model("mixtral-8x7b", offline=True),
    "wide vocabulary": shape(num_hidden_layers=24, num_key_value_heads=8, vocab_size=150_001),
}

LAYOUTS = {
    "ddp": {"dp_replicate": 2},
    "zero1": {"dp_shard": 2, **ZERO1},
    "zero2": {"dp_shard": 2, **ZERO2},
    "fsdp": {"dp_shard": 2},
    "hsdp": {"dp_replicate": 2, "dp_shard": 2},
    "tp": {"tp": 2},
    "cp": {"cp": 2},
    "fsdp x tp": {"dp_shard": 2, "tp": 2},
    "fsdp x cp": {"dp_shard": 2, "cp": 2},
    **{
        f"{name} x {schedule}": {**beside, "pp": 2, "schedule": schedule}
        for schedule in SCHEDULES
        for name, beside in (
            ("ddp", {"dp_replicate": 2}),
            ("zero2", {"dp_shard": 2, **ZERO2}),
            ("fsdp", {"dp_shard": 2}),
            ("tp", {"tp": 2}),
        )
    },
}

settings_of_a_step = st.fixed_dictionaries(
    {
        "gradient_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "precision": st.sampled_from(["mixed", "bf16", "fp32"]),
        "optimizer": st.sampled_from(["adamw", "sgd", "adafactor"]),
        "loss": st.sampled_from(["full", "chunked"]),
        "micro_batch_size": st.sampled_from([1, 2, 3, 16]),
    }
)
jobs = st.builds(
    lambda method, length, packing: job(method=method, data={"max_length": length, "packing": packing}),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from([1, 100, 1024, 8192]),
    st.booleans(),
)
models = st.sampled_from(list(MODELS))


def needs(asked, model, layout, **keys):
    return memory(asked, MODELS[model], layout, **keys).peak_high_bytes


@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=12)
@given(asked=jobs, model=models, step=settings_of_a_step, size=st.integers(1, 30), forwards=st.integers(1, 9))
def test_a_smaller_micro_batch_never_needs_more(name, asked, model, step, size, forwards):
    layout = Layout(**LAYOUTS[name])
    # A single chunk of the loss is kept from forward to backward, several are computed again.
    both_in_one = [count * asked.data.max_length <= CHUNK_TOKENS for count in (size, size + 1)]
    assume(step["loss"] == "full" or layout.pp == 1 or len(set(both_in_one)) == 1)
    small, large = (
        needs(asked, model, layout, gradient_accumulation_steps=forwards, **{**step, "micro_batch_size": count})
        for count in (size, size + 1)
    )
    assert small <= large


@pytest.mark.parametrize("name", [name for name, degrees in LAYOUTS.items() if "pp" not in degrees])
@settings(max_examples=12)
@given(asked=jobs, model=models, step=settings_of_a_step, size=st.integers(1, 15), forwards=st.integers(2, 9))
def test_half_the_micro_batch_never_needs_more_once_gradients_accumulate(name, asked, model, step, size, forwards):
    layout = Layout(**LAYOUTS[name])
    half, whole = (
        needs(asked, model, layout, gradient_accumulation_steps=count, **{**step, "micro_batch_size": samples})
        for samples, count in ((size, 2 * forwards), (2 * size, forwards))
    )
    assert half <= whole


def test_the_first_accumulation_may_need_more_because_gradients_wait_beside_the_next_forward():
    asked, whole = job(data={"max_length": 64}), Layout()
    alone = needs(asked, "tied", whole, micro_batch_size=2)
    assert needs(asked, "tied", whole, micro_batch_size=1, gradient_accumulation_steps=2) > alone
