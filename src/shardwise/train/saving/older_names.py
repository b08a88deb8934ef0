"""config.json with the names that transformers 5 gave up, for programs that read these alone."""

import json
from pathlib import Path
from typing import Any

from shardwise.spec.run import read_json, write_json

_FULL, _SLIDING = "full_attention", "sliding_attention"

#: Keys of a base that are none of the result: its type of weights and how they were quantised.
_OF_THE_BASE = ("torch_dtype", "dtype", "quantization_config")


def keep_older_names(folder: Path, config: Any, base: Path | None) -> None:
    """Adds to config.json what transformers 5 keeps under other names alone: `rope_theta`,
    `rope_scaling` and `partial_rotary_factor` of `rope_parameters`, and keys of the base's
    config.json that were dropped while it was read. mlx-lm 0.32.2 and transformers 4 read the older
    names alone and, where they find none, silently take 10,000 as the base of the rotary embedding.
    A key with which transformers would read another configuration is left out.

    `config`: what was saved in `folder`; `base`: the folder of the trained model, or None."""
    said = read_json(folder / "config.json")
    if said is None:
        return
    older = _beside(_rotary(said), {} if base is None else _lasting(read_json(base / "config.json") or {}))
    expected = _read(config, said)
    if expected is None:
        return
    both = said
    for key, value in older.items():
        more = _beside(both, {key: value})
        both = more if _read(config, more) == expected else both
    if both != said:
        write_json(folder / "config.json", both)


def _read(config: Any, said: dict[str, Any]) -> dict[str, Any] | None:
    """What transformers reads, infinity as it writes it; None where it refuses that."""
    plain = json.loads(json.dumps(said), object_hook=lambda one: float(one["__float__"]) if "__float__" in one else one)
    try:
        return type(config).from_dict(plain).to_dict()
    except Exception:  # noqa: BLE001 - configuration classes raise errors of many kinds
        return None


def _lasting(stated: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _lasting(value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType]
        for key, value in stated.items()
        if not key.startswith("_") and key not in _OF_THE_BASE
    }


def _beside(said: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`said` with the keys of `more` that it lacks, in configurations inside both too."""
    both = dict(said)
    for key, value in more.items():
        if key not in said:
            both[key] = value
        elif isinstance(value, dict) and isinstance(said[key], dict) and key.endswith("_config"):
            both[key] = _beside(said[key], value)  # pyright: ignore[reportUnknownArgumentType]
    return both


def _rotary(said: dict[str, Any]) -> dict[str, Any]:
    """The older names of what `rope_parameters` say, in the dicts where they stand."""
    older: dict[str, Any] = {
        key: found
        for key, value in said.items()
        if isinstance(value, dict) and (found := _rotary(value))  # pyright: ignore
    }
    rotary = said.get("rope_parameters")
    if not isinstance(rotary, dict):
        return older
    if isinstance(full := rotary.get(_FULL), dict) and isinstance(sliding := rotary.get(_SLIDING), dict):  # pyright: ignore
        older["rope_local_base_freq"] = sliding.get("rope_theta")
        rotary = full  # pyright: ignore[reportUnknownVariableType]
    scaling: dict[str, Any] = dict(rotary)  # pyright: ignore[reportUnknownArgumentType]
    for name in ("rope_theta", "partial_rotary_factor"):
        older[name] = scaling.pop(name, None)
    if scaling.get("rope_type", "default") != "default":
        older["rope_scaling"] = scaling
    return {key: value for key, value in older.items() if value is not None}
