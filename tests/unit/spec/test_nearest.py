"""What is said to be the nearest layout can be written in a job, has as many ranks, and is trained."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwise.api.shapes import find_model
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job, LayoutSpec
from shardwise.spec.job_file import job_from_data
from shardwise.spec.layout import Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.nearest import nearest_layout
from shardwise.spec.splits import splits
from shardwise.spec.support import misfit, not_trained, refusal

LLAMA = find_model("tinyllama-1.1b", offline=True)
GPT2 = find_model("gpt2", offline=True)

#: Families that are cut in every way, in stages only and in none, and builds of which as much was seen.
KINDS = (
    LLAMA,
    replace(LLAMA, family="phi3"),
    GPT2,
    replace(LLAMA, family="new", built=("stages", "slices")),
    replace(LLAMA, family="new", built=("stages without dropout", "slices")),
    replace(LLAMA, family="new", built=("stages",)),
    replace(LLAMA, family="new", built=()),
)

DEGREE = st.sampled_from([1, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32])
SCHEDULES = st.sampled_from(["1f1b", "gpipe", "interleaved", "zero_bubble", "sequential"])


@st.composite
def stated(draw: st.DrawFn) -> Layout:
    """Any layout that a job can state."""
    keys: dict[str, Any] = {axis: draw(DEGREE) for axis in ("dp_replicate", "dp_shard", "tp", "pp")}
    if keys["pp"] > 1:
        keys["schedule"] = draw(SCHEDULES)
    if keys["dp_shard"] > 1:
        keys["zero_stage"] = draw(st.sampled_from([1, 2, 3]))
        keys["reshard_after_forward"] = draw(st.booleans())
    return LayoutSpec(**keys).to_layout()


def _read(written: str, num_gpus: int) -> Layout:
    job = Job.model_validate({"model": "m", "data": {"num_rows": 8}, "layout": yaml.safe_load(written)})
    asked = job.layout
    return asked.to_layout() if isinstance(asked, LayoutSpec) else Layout.from_strategy(str(asked), world_size=num_gpus)


@given(stated(), st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 6, 8, 32]), st.sampled_from([LLAMA, GPT2]))
def test_the_nearest_layout_is_one_that_is_trained(layout: Layout, layers: int, heads: int, family: Any) -> None:
    model = replace(family, num_layers=layers, num_attention_heads=32, num_key_value_heads=heads)
    assume(misfit(model, layout) is not None)
    nearest = _read(nearest_layout(model, layout), layout.world_size)
    assert nearest.world_size == layout.world_size
    assert misfit(model, nearest) is None
    assert refusal(method="full", layout=nearest, model=model) is None


@given(
    stated(),
    st.integers(1, 12),
    st.sampled_from([1, 2, 3, 4, 6, 8, 32]),
    st.sampled_from([62, 64, 61, 48]),
    st.sampled_from(KINDS),
)
def test_every_layout_that_a_refusal_names_is_one_that_is_trained(
    layout: Layout, layers: int, heads: int, width: int, kind: ModelShape
) -> None:
    model = replace(kind, num_layers=layers, num_attention_heads=96, num_key_value_heads=heads, intermediate_size=width)
    reason = misfit(model, layout, stated=True) or refusal(method="full", layout=layout, model=model, stated=True)
    assume(reason is not None and "zero_bubble keeps" not in reason)
    assert reason is not None
    named = re.findall(r"nearest layout [^:]*: (\{[^}]*\}|\w+)|or use (\{[^}]*\}|fsdp)", reason)
    assert len(named) == 1, reason
    nearest = _read(named[0][0] or named[0][1], layout.world_size)
    assert nearest.world_size == layout.world_size
    assert misfit(model, nearest) is None
    assert refusal(method="full", layout=nearest, model=model) is None


@given(
    st.sampled_from([5, 7, 12, 16, 32]),
    st.sampled_from([2, 4, 6, 8]),
    st.sampled_from([62, 64, 48]),
    st.sampled_from([kind for kind in KINDS if splits(kind, "slices")]),
)
def test_the_largest_tp_that_a_refusal_names_is_not_refused_for_its_slices(
    tp: int, heads: int, width: int, kind: ModelShape
) -> None:
    model = replace(kind, num_layers=64, num_attention_heads=96, num_key_value_heads=heads, intermediate_size=width)
    reason = misfit(model, Layout(tp=tp)) or refusal(method="full", layout=Layout(tp=tp), model=model) or ""
    found = re.search(r"the largest tp that slices it evenly is (\d+)", reason)
    assert found is not None
    assert refusal(method="full", layout=Layout(tp=int(found[1])), model=model) is None


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (Layout(tp=8), "{dp_shard: 2, tp: 4}"),
        (Layout(tp=3), "fsdp"),
        (Layout(tp=3, dp_shard=4), "{dp_shard: 6, tp: 2}"),
        (Layout(pp=32), "{pp: 16, dp_shard: 2}"),
        (Layout(pp=32, schedule="sequential"), "{pp: 16, dp_shard: 2, schedule: sequential}"),
        (Layout(pp=16, schedule="interleaved"), "{pp: 8, dp_shard: 2, schedule: interleaved}"),
        (Layout(pp=32, schedule="zero_bubble"), "{pp: 16, dp_shard: 2, schedule: zero_bubble, zero_stage: 2}"),
        (Layout(tp=8, dp_shard=2, reshard_after_forward=False), "{dp_shard: 4, tp: 4, reshard_after_forward: false}"),
        (Layout(pp=23), "fsdp"),
    ],
)
def test_it_is_as_near_as_the_model_allows(layout: Layout, says: str) -> None:
    """22 blocks, 32 heads, 4 of keys and values."""
    assert nearest_layout(LLAMA, layout) == says


def test_a_width_that_tp_does_not_divide_is_answered_with_a_layout_as_heads_and_stages_are() -> None:
    """Qwen3 whose MLP is 62 wide, on four ranks."""
    model = replace(LLAMA, family="qwen3", intermediate_size=62)
    job = job_from_data({"model": "m", "data": {"path": "rows.jsonl"}, "method": "full"})
    execution = Execution(layout=Layout(tp=4), micro_batch_size=1, gradient_accumulation_steps=1)
    assert not_trained(job, execution, model=model) == [
        "tp = 4 does not divide the model's 62 elements of the MLP's width; the largest tp that slices it evenly is 2; "
        "the nearest layout of as many ranks: {dp_shard: 2, tp: 2}"
    ]
    assert "nearest" not in str(refusal(method="full", layout=Layout(tp=4), model=model))


def test_all_that_does_not_come_out_even_is_told_at_once() -> None:
    assert misfit(LLAMA, Layout(tp=8, pp=32), stated=True) == (
        "tp = 8 does not divide the model's 4 key-value heads; the largest tp that slices it evenly is 4; "
        "32 pipeline stages for 22 layers; use pp: 22 at most; "
        "the nearest layout of as many ranks: {pp: 16, dp_shard: 4, tp: 4}"
    )
