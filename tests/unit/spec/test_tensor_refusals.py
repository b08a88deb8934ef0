"""What tensor parallelism cannot slice is a sentence, for the planner and the trainer alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.catalog.config import shape_from_data
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.job_file import job_from_data
from shardwise.spec.layout import Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.support import misfit, not_trained, open_refusal, refusal


@pytest.fixture
def job() -> Job:
    return job_from_data({"model": "tinyllama-1.1b", "data": {"path": "rows.jsonl"}, "method": "full"})


@pytest.fixture
def model() -> ModelShape:
    """32 heads, 8 of keys and values, an MLP 14336 wide."""
    return replace(shape_from_data({"model_type": "mistral"}, file="config.json"), family="llama")


def sliced(tp: int) -> Execution:
    return Execution(layout=Layout(tp=tp), micro_batch_size=1, gradient_accumulation_steps=1, precision="fp32")


@pytest.mark.parametrize(
    ("tp", "says"), [(16, "8 key-value heads"), (64, "32 attention heads"), (3, "14336 elements of the MLP's width")]
)
def test_a_tp_that_does_not_divide_is_refused(tp: int, says: str, job: Job, model: ModelShape) -> None:
    assert not_trained(job, sliced(8), model=model) == []
    reasons = not_trained(job, sliced(tp), model=model)
    assert any(f"tp = {tp} does not divide the model's" in reason and says in reason for reason in reasons)


def test_what_is_left_open_is_chosen_among_what_the_model_can_be_sliced_into(model: ModelShape) -> None:
    assert open_refusal(method="lora", layout=Layout(tp=8), model=model) is None
    assert "8 key-value heads" in str(open_refusal(method="lora", layout=Layout(tp=16), model=model))


@pytest.mark.parametrize("tp", [2, 3, 16])
def test_a_family_that_is_not_sliced_is_refused_as_such_whatever_its_heads(tp: int, model: ModelShape) -> None:
    other = replace(model, family="phi3")
    said = "phi3 is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: "
    assert refusal(method="full", layout=Layout(tp=tp), model=other) == said + "fsdp"
    assert misfit(other, Layout(tp=tp)) == (None if tp == 2 else said + "fsdp")
    assert refusal(method="full", layout=Layout(tp=tp, pp=2), model=other) == said + "fsdp"


def test_experts_are_planned_under_any_tp_that_divides_their_heads() -> None:
    mixtral = shape_from_data({"model_type": "mixtral"}, file="config.json")
    assert misfit(mixtral, Layout(tp=8)) is None
    assert "the largest tp that slices it evenly is 8" in str(misfit(mixtral, Layout(tp=16)))
    assert str(misfit(mixtral, Layout(tp=16), stated=True)).endswith("is 8; or use fsdp")


def test_the_reason_for_a_stated_layout_ends_with_what_to_write_instead(job: Job, model: ModelShape) -> None:
    narrow = replace(model, family="qwen3", intermediate_size=62)
    said = (
        "tp = 4 does not divide the model's 62 elements of the MLP's width; the largest tp that slices it evenly is 2"
    )
    assert not_trained(job, sliced(4), model=narrow) == [f"{said}; or use fsdp"]
    assert refusal(method="full", layout=Layout(tp=4), model=narrow) == said


def test_all_that_does_not_come_out_even_is_told_at_once(model: ModelShape) -> None:
    assert misfit(model, Layout(tp=16, pp=64), stated=True) == (
        "tp = 16 does not divide the model's 8 key-value heads; the largest tp that slices it evenly is 8; "
        "64 pipeline stages for 32 layers; use pp: 32 at most; or use fsdp"
    )
