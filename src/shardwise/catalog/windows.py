"""How many blocks' attention has a sliding window."""

from __future__ import annotations

from typing import Any, cast

from shardwise.catalog.blocks import Dimensions


def windowed_layers(layer_types: Any, *, every: int, layers: int) -> int | None:
    """How many of `layers` blocks' attention has the window; None for all.

    Args:
        layer_types: the kind of each block's attention, where the configuration lists them.
        every: else every n-th block has none; 0 where all have it.
    """
    if isinstance(layer_types, list):
        listed = cast(list[Any], layer_types)[:layers]
        windowed = sum(kind != "full_attention" for kind in listed)
        return None if windowed == layers else windowed
    return layers - layers // every if every else None


def from_a_layer_on(d: Dimensions) -> int:
    """All from `max_window_layers` on, as in Qwen2 and Qwen3."""
    return max(0, d.layers - (d.optional["max_window_layers"] or 0))


def every_other_up_to_a_layer(d: Dimensions) -> int:
    """Every other block below `max_window_layers`, as in Qwen2-MoE."""
    return (min(d.layers, d.optional["max_window_layers"] or 0) + 1) // 2


def without_rotation(d: Dimensions) -> int:
    """Blocks without rotary positions, as in SmolLM3: where `no_rope_layers` has 0, else every n-th."""
    listed = d.layer_lists["no_rope_layers"]
    if listed is None:
        return d.layers // d.numbers["no_rope_layer_interval"]
    return sum(not rotated for rotated in listed[: d.layers])
