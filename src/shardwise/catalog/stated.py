"""What a configuration states whatever its family: what is never read, storage type, dropout, rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from shardwise.errors import ModelError, quoted

#: Keys by which a configuration asks for Python code from its own repository to be run, whatever its model_type.
_CODE_KEYS = ("custom_pipelines", "trust_remote_code")
#: Keys by which transformers' attention is not causal, and whether a configuration that states one says so. The first
#: is asked of every configuration, a null being a no. Gemma's is true, or speaks of images alone. For what the last
#: asks for, Falcon's code adds a mask of yes and no to scores.
_NOT_CAUSAL: dict[str, Callable[[dict[str, Any]], bool]] = {
    "is_causal": lambda data: not data["is_causal"],
    "use_bidirectional_attention": lambda data: data["use_bidirectional_attention"] not in (None, False, "vision"),
    "output_attentions": lambda data: data.get("model_type") == "falcon" and bool(data["output_attentions"]),
}
_STORAGE_TYPES = ("float32", "bfloat16", "float16", "float64")


def refuse_foreign(data: dict[str, Any], *, file: str) -> None:
    """Refuses a configuration that asks for code, or for what is no plain causal decoder. Raises ModelError: by which
    key."""
    message = None
    code = next((key for key in _CODE_KEYS if data.get(key)), None)
    if code is not None:
        message = (
            f"{code} names Python code of the model's own, which is never run; use a copy that "
            "transformers supports without it"
        )
    elif data.get("quantization_config"):
        message = "quantization_config says the weights are quantised already; name the unquantised model"
    elif data.get("add_cross_attention") or data.get("is_encoder_decoder"):
        message = "it is not a decoder-only language model; cross attention is not known"
    else:
        message = _why_not_causal(data)
    if message is not None:
        raise ModelError.at(file, message)


def _why_not_causal(data: dict[str, Any]) -> str | None:
    """By which key a token sees those after it; None where it sees none."""
    for key, says in _NOT_CAUSAL.items():
        if key in data and says(data):
            return (
                f"{key} is {quoted(data[key])}, by which a token sees those after it, and a language model is trained "
                "to foretell them; leave the key out"
            )
    return None


def storage_type(data: dict[str, Any], *, file: str) -> str:
    """The type that a configuration says weights are stored in. Raises ModelError: it is none that is read."""
    found = data.get("dtype") or data.get("torch_dtype") or "float32"
    if found not in _STORAGE_TYPES:
        raise ModelError.at(file, f"dtype is {quoted(found)}; expected one of {', '.join(_STORAGE_TYPES)}")
    return found


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
