"""What a configuration says about dropout and rotary positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

#: Heads of other tasks, which no language model has, with rates of their own.
_OTHER_HEADS = ("summary_", "classifier_")


def drops_out(stated: Mapping[str, Any]) -> bool:
    """Whether a model has dropout, by keys of its configuration such as `attention_dropout` or `resid_pdrop`."""
    return any(rate > 0 for rate in _rates(stated))


def _rates(stated: Mapping[str, Any]) -> Iterator[float]:
    for key, value in stated.items():
        name = str(key)  # transformers numbers its labels
        if isinstance(value, dict):
            yield from _rates(cast(dict[str, Any], value))
        elif "drop" in name and not name.startswith(_OTHER_HEADS) and isinstance(value, int | float):
            yield value


def steady_positions(stated: Mapping[str, Any], *, positions: int) -> int | None:
    """The length up to which rotary frequencies do not depend on the longest sequence; None for any."""
    for _, rotation in _following(stated):
        if _kind(rotation) == "dynamic":
            return positions
        original = rotation.get("original_max_position_embeddings") or stated.get("original_max_position_embeddings")
        return original if type(original) is int else positions
    return None


def rotation_by_length(stated: Mapping[str, Any]) -> str | None:
    """The key that makes rotary frequencies depend on the sequence length, and its value; None where none does."""
    for place, rotation in _following(stated):
        key = "rope_type" if "rope_type" in rotation else "type"
        return f"{place}.{key} is {_kind(rotation)!r}"
    return None


def _following(stated: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rotations whose frequencies depend on the sequence length, with their keys."""
    place = "rope_parameters" if stated.get("rope_parameters") else "rope_scaling"
    rope = stated.get(place)
    if not isinstance(rope, dict):
        return
    plain = cast(dict[str, Any], rope)
    by_layer = {f"{place}.{kind}": cast(dict[str, Any], one) for kind, one in plain.items() if isinstance(one, dict)}
    for where, one in {place: plain, **by_layer}.items():
        if _kind(one) in ("longrope", "su", "dynamic"):
            yield where, one


def _kind(rotation: Mapping[str, Any]) -> Any:
    return rotation.get("rope_type", rotation.get("type"))
