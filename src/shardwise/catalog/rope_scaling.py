"""A model whose rotary positions a job stretches (`rope_scaling`): config.json, and shape."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from shardwise.errors import UnsupportedError
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.model.shape import ModelShape

#: What of a model's own rotation stays where the job does not say it.
_KEPT = ("rope_theta", "partial_rotary_factor")
#: Families whose layers rotate in two ways, of which their config.json may say one.
_SEVERAL = ("gemma3", "gemma3_text", "gemma3n", "gemma3n_text")
#: What families call their number of positions.
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
#: Kinds that count from the positions of `rope_parameters`; others from those of the model.
_FROM_ORIGINAL = ("yarn", "llama3", "longrope")


def rotation(own: Mapping[str, Any], rope: RopeScaling, *, positions: int) -> dict[str, Any]:
    """`rope_parameters` of a model with a job's. `own`: those of its config.json; `positions`: that
    it states. Raises UnsupportedError: its layers rotate in several ways."""
    if several := [str(key) for key, one in own.items() if isinstance(one, dict)]:
        raise _several(", ".join(several))
    kept = {key: own[key] for key in _KEPT if own.get(key) is not None}
    original = {"original_max_position_embeddings": positions} if rope.rope_type in _FROM_ORIGINAL else {}
    return {**kept, **original, **rope.stated}


def scaled_config(data: dict[str, Any], rope: RopeScaling | None) -> dict[str, Any]:
    """The keys of a config.json with a job's `rope_scaling`, of a model of more than text in its
    language model. Raises UnsupportedError: as `rotation`."""
    if rope is None:
        return data
    if isinstance(inner := data.get("text_config"), dict):
        return {**data, "text_config": scaled_config(cast(dict[str, Any], inner), rope)}
    own: dict[str, Any] = data.get("rope_parameters") or data.get("rope_scaling") or {}
    made = rotation(own, rope, positions=_positions(data))
    others = {key: one for key, one in data.items() if key != "rope_scaling"}
    if "original_max_position_embeddings" in others and "original_max_position_embeddings" in made:
        others["original_max_position_embeddings"] = made["original_max_position_embeddings"]
    return {**others, "rope_parameters": made}


def scaled_shape(shape: ModelShape, rope: RopeScaling | None, data: Mapping[str, Any]) -> ModelShape:
    """A shape that was read of `scaled_config`, with the positions that are reached. `data`:
    config.json as it is. Raises UnsupportedError: its positions do not rotate."""
    if rope is None:
        return shape
    if shape.family in _SEVERAL:
        raise _several("full_attention, sliding_attention")
    if shape.position_parameters:
        raise UnsupportedError(f"rope_scaling: {shape.family} has learned positions, which none stretches; remove it")
    inner = data.get("text_config")
    stated = _positions(cast(dict[str, Any], inner) if isinstance(inner, dict) else data)
    return replace(shape, max_position_embeddings=max(stated, rope.reach(stated)))


def _several(names: str) -> UnsupportedError:
    return UnsupportedError(
        f"rope_scaling: layers of this model rotate in several ways ({names}), and the key says one for all; write "
        "rope_parameters into a copy of its config.json"
    )


def _positions(data: Mapping[str, Any]) -> int:
    found = next((data[name] for name in _POSITIONS if isinstance(data.get(name), int)), None)
    if found is None:
        raise UnsupportedError(
            "rope_scaling: config.json of the model states no max_position_embeddings, which it stretches; add it there"
        )
    return found
