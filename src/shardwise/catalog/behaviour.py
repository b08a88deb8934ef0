"""What a configuration says of training beyond shapes: whether anything is dropped out, and how far positions hold"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

#: Heads of other tasks, which no language model has, with rates of their own.
_OTHER_HEADS = ("summary_", "classifier_")


def drops_out(stated: Mapping[str, Any]) -> bool:
    """Whether a model drops anything out at random in training, by keys such as `attention_dropout` or `resid_pdrop`.

    Args:
        stated: the keys of a configuration, with what its family takes them for where it leaves them out.
    """
    return any(rate > 0 for rate in _rates(stated))


def _rates(stated: Mapping[str, Any]) -> Iterator[float]:
    for key, value in stated.items():
        name = str(key)  # transformers numbers its labels
        if isinstance(value, dict):
            yield from _rates(cast(dict[str, Any], value))
        elif "drop" in name and not name.startswith(_OTHER_HEADS) and isinstance(value, int | float):
            yield value


def steady_positions(stated: Mapping[str, Any], *, positions: int) -> int | None:
    """Up to which length rotary frequencies do not follow the longest sequence of a micro-batch; None for any.

    Args:
        stated: the keys of a configuration.
        positions: its `max_position_embeddings`.
    """
    rope = stated.get("rope_parameters") or stated.get("rope_scaling")
    if not isinstance(rope, dict):
        return None
    plain = cast(dict[str, Any], rope)
    by_layer = [cast(dict[str, Any], one) for one in plain.values() if isinstance(one, dict)]
    for one in (plain, *by_layer):
        kind = one.get("rope_type", one.get("type"))
        original = one.get("original_max_position_embeddings") or stated.get("original_max_position_embeddings")
        if kind in ("longrope", "su"):
            return original if type(original) is int else positions
        if kind == "dynamic":
            return positions
    return None
