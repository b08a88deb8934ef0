"""More GPUs of one strategy, and smaller micro-batches, never turn "fits" into "does not"; and where that is not so.

What is held is the upper end of the forecast's interval, which is what decides whether a job fits. A strategy takes
more GPUs along one axis, the others as they were; the global batch is then fewer forwards of each rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.answer import make_plan
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


@dataclass(frozen=True, kw_only=True)
class Family:
    """Layouts of one strategy, by the axis along which it takes more GPUs, and what else it has."""

    axis: str
    degrees: tuple[int, ...]
    beside: dict[str, Any]

    def on(self, degree: int) -> Layout:
        return Layout(**{**self.beside, self.axis: degree})


DATA_DEGREES = (2, 3, 4, 5, 7, 8, 12, 16, 31, 64, 100, 1000)
#: Every strategy that any layout has, along every axis that it can grow by without more stages.
FAMILIES = {
    "ddp": Family(axis="dp_replicate", degrees=DATA_DEGREES, beside={}),
    "zero1": Family(axis="dp_shard", degrees=DATA_DEGREES, beside=ZERO1),
    "zero1, more copies": Family(axis="dp_replicate", degrees=DATA_DEGREES, beside={"dp_shard": 2, **ZERO1}),
    "zero2": Family(axis="dp_shard", degrees=DATA_DEGREES, beside=ZERO2),
    "fsdp": Family(axis="dp_shard", degrees=DATA_DEGREES, beside={}),
    "hsdp, larger groups": Family(axis="dp_shard", degrees=DATA_DEGREES, beside={"dp_replicate": 2}),
    "hsdp, more groups": Family(axis="dp_replicate", degrees=DATA_DEGREES, beside={"dp_shard": 2}),
    "tp": Family(axis="tp", degrees=(2, 4, 8), beside={}),
    "cp": Family(axis="cp", degrees=(2, 3, 4, 8), beside={}),
    "ddp x tp": Family(axis="tp", degrees=(2, 4, 8), beside={"dp_replicate": 2}),
    "fsdp x tp": Family(axis="tp", degrees=(2, 4, 8), beside={"dp_shard": 2}),
    "fsdp x tp, more shards": Family(axis="dp_shard", degrees=DATA_DEGREES, beside={"tp": 2}),
    "fsdp x cp": Family(axis="cp", degrees=(2, 3, 4, 8), beside={"dp_shard": 2}),
    **{
        f"{name} x {schedule}": Family(axis=axis, degrees=degrees, beside={**beside, "pp": 2, "schedule": schedule})
        for schedule in SCHEDULES
        for name, axis, degrees, beside in (
            ("ddp", "dp_replicate", DATA_DEGREES, {}),
            ("zero1", "dp_shard", DATA_DEGREES, ZERO1),
            ("zero2", "dp_shard", DATA_DEGREES, ZERO2),
            ("fsdp", "dp_shard", DATA_DEGREES, {}),
            ("tp", "tp", (2, 4, 8), {}),
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


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=12)
@given(data=st.data(), asked=jobs, model=models, step=settings_of_a_step, forwards=st.integers(1, 9))
def test_more_gpus_of_a_strategy_never_need_more_each(name, data, asked, model, step, forwards):
    family = FAMILIES[name]
    fewer, more = sorted(data.draw(st.lists(st.sampled_from(family.degrees), min_size=2, max_size=2, unique=True)))
    # A global batch over more ranks that see other samples is fewer forwards of each.
    left = max(1, forwards * fewer // more) if family.axis.startswith("dp") else forwards
    forwards, left = (_filling_rounds(family.on(fewer), count) for count in (forwards, left))
    few = needs(asked, model, family.on(fewer), gradient_accumulation_steps=forwards, **step)
    assert needs(asked, model, family.on(more), gradient_accumulation_steps=left, **step) <= few


def _filling_rounds(layout, forwards):
    """Forwards that an interleaved pipeline's ranks divide: see `plan.scene.flights`."""
    return forwards // layout.pp * layout.pp or 1 if layout.schedule == "interleaved" else forwards


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=12)
@given(asked=jobs, model=models, step=settings_of_a_step, size=st.integers(1, 30), forwards=st.integers(1, 9))
def test_a_smaller_micro_batch_never_needs_more(name, asked, model, step, size, forwards):
    layout = FAMILIES[name].on(2)
    # A single chunk of the loss is kept from forward to backward, several are computed again: plan.buffers.
    both_in_one = [count * asked.data.max_length <= CHUNK_TOKENS for count in (size, size + 1)]
    assume(step["loss"] == "full" or layout.pp == 1 or len(set(both_in_one)) == 1)
    small, large = (
        needs(asked, model, layout, gradient_accumulation_steps=forwards, **{**step, "micro_batch_size": count})
        for count in (size, size + 1)
    )
    assert small <= large


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if "pp" not in family.beside])
@settings(max_examples=12)
@given(asked=jobs, model=models, step=settings_of_a_step, size=st.integers(1, 15), forwards=st.integers(2, 9))
def test_half_the_micro_batch_never_needs_more_once_gradients_accumulate(name, asked, model, step, size, forwards):
    layout = FAMILIES[name].on(2)
    half, whole = (
        needs(asked, model, layout, gradient_accumulation_steps=count, **{**step, "micro_batch_size": samples})
        for samples, count in ((size, 2 * forwards), (2 * size, forwards))
    )
    assert half <= whole


def test_the_first_accumulation_may_need_more_because_gradients_wait_beside_the_next_forward():
    asked, whole = job(data={"max_length": 64}), Layout()
    alone = needs(asked, "tied", whole, micro_batch_size=2)
    assert needs(asked, "tied", whole, micro_batch_size=1, gradient_accumulation_steps=2) > alone


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=12)
@given(asked=jobs, model=models, step=settings_of_a_step, forwards=st.integers(1, 9), data=st.data())
def test_more_stages_never_need_more_where_no_more_micro_batches_are_in_flight(
    schedule, asked, model, step, forwards, data
):
    forwards = forwards if schedule in ("sequential", "gpipe") else 1
    degrees = [degree for degree in (2, 3, 4, 5, 6, 8, 12) if 2 * degree <= MODELS[model].num_layers]
    fewer, more = sorted(data.draw(st.lists(st.sampled_from(degrees), min_size=2, max_size=2, unique=True)))
    few, many = (
        needs(asked, model, Layout(pp=degree, schedule=schedule), gradient_accumulation_steps=forwards, **step)
        for degree in (fewer, more)
    )
    assert many <= few


@pytest.mark.parametrize(
    ("schedule", "model", "fewer"),
    [("1f1b", "tied", 3), ("interleaved", "tied", 4), ("zero_bubble", "wide vocabulary", 2)],
)
def test_more_stages_may_need_more_where_they_keep_more_micro_batches_in_flight(schedule, model, fewer):
    asked = job(method="lora", data={"max_length": 8192})
    keys = {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "loss": "chunked"}
    few, many = (needs(asked, model, Layout(pp=pp, schedule=schedule), **keys) for pp in (fewer, fewer + 1))
    assert few < many


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.sampled_from(["2x L4", "4x L4", "8x L4", "2 x 4x L4"]),
    st.sampled_from(["full", "lora"]),
    st.floats(0.02, 3),
    st.floats(1, 4),
)
def test_more_memory_never_turns_a_strategy_that_fits_into_one_that_does_not(hardware, method, gib, factor):
    cluster = parse_hardware(hardware)

    def fitting(memory_gib):
        gpu = replace(cluster.gpu, memory_bytes=int(memory_gib * 2**30), reserved_bytes=0)
        resized = replace(cluster, node=replace(cluster.node, gpu=gpu))
        answer = make_plan(job(method=method), model=shape(), cluster=resized)
        return {candidate.execution.layout.strategy for candidate in answer.candidates if candidate.fits}

    assert fitting(gib) <= fitting(gib * factor)
