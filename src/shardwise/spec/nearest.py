"""The layout nearest to one that a model cannot be cut into: of as many ranks, as a job writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwise.spec.layout import AXES, Layout, stages_per_rank
from shardwise.spec.model import ModelShape
from shardwise.spec.splits import most_slices, splits


def nearest_layout(model: ModelShape, layout: Layout) -> str:
    """What to write after `layout:` instead: tp and pp as near as the model allows, and dp_shard for the ranks left.

    Args:
        model: that cannot be spread by it.
        layout: as it was stated.
    """
    # Experts are planned, and not trained, under any degrees that come out even.
    sliced, staged = (splits(model, way) or model.has_experts for way in ("slices", "stages"))
    slices = most_slices(model) if sliced else 1
    stages = model.num_layers // stages_per_rank(layout.schedule) if staged else 1
    ranks = layout.tp * layout.dp_shard
    tp = max(one for one in range(1, min(layout.tp, slices) + 1) if slices % one == ranks % one == 0)
    ranks = layout.pp * ranks // tp
    pp = max(one for one in range(1, min(layout.pp, max(1, stages)) + 1) if ranks % one == 0)
    return _written(_spread(layout, tp=tp, pp=pp, dp_shard=ranks // pp))


def _spread(layout: Layout, *, tp: int, pp: int, dp_shard: int) -> Layout:
    """A layout with other degrees; without a pipeline it has no order, and a cut backward keeps gathered weights."""
    nearest = replace(layout, tp=tp, pp=pp, dp_shard=dp_shard, schedule=layout.schedule if pp > 1 else "1f1b")
    if nearest.schedule == "zero_bubble" and nearest.weight_shards > 1 and nearest.reshard_after_forward:
        return replace(nearest, zero_stage=2, reshard_after_forward=False)
    return nearest


def _written(layout: Layout) -> str:
    axes: dict[str, Any] = {axis: getattr(layout, axis) for axis in AXES if getattr(layout, axis) > 1}
    if set(axes) == {"dp_shard"} and layout.zero_stage == 3 and layout.reshard_after_forward:
        return "fsdp"
    if layout.pp > 1 and layout.schedule != "1f1b":
        axes["schedule"] = layout.schedule
    if layout.dp_shard > 1 and layout.zero_stage < 3:
        axes["zero_stage"] = layout.zero_stage
    elif layout.dp_shard > 1 and not layout.reshard_after_forward:
        axes["reshard_after_forward"] = "false"
    return "{" + ", ".join(f"{key}: {value}" for key, value in axes.items()) + "}"
