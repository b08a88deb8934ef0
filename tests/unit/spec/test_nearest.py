"""What is said to be the nearest layout can be written in a job, has as many ranks, and is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwise.api.shapes import find_model
from shardwise.spec.job import Job, LayoutSpec
from shardwise.spec.layout import Layout
from shardwise.spec.nearest import nearest_layout
from shardwise.spec.support import misfit, refusal

LLAMA = find_model("tinyllama-1.1b", offline=True)
GPT2 = find_model("gpt2", offline=True)

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
