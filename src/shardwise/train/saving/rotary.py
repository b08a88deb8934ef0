"""config.json with the rotary settings under their older names too, for programs that read these alone."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from shardwise.spec.run import read_json, write_json

_FULL, _SLIDING = "full_attention", "sliding_attention"


def keep_older_rotary_names(folder: Path, config: Any) -> None:
    """Adds `rope_theta`, `rope_scaling` and `partial_rotary_factor` beside the `rope_parameters` in
    which transformers 5 keeps all three. mlx-lm 0.32.2 and transformers 4 read the older names alone
    and, where they find none, silently take 10,000 as the base of the rotary embedding. Nothing is
    added where transformers would then read another configuration.

    `config`: the configuration that was saved in `folder`."""
    said = read_json(folder / "config.json")
    if said is None:
        return
    both = _with_older_names(said)
    if both != said and _read(config, both) == _read(config, said):
        write_json(folder / "config.json", both)


def _read(config: Any, said: dict[str, Any]) -> dict[str, Any]:
    return type(config).from_dict(deepcopy(said)).to_dict()  # which changes what it is given


def _with_older_names(said: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: _with_older_names(value) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType]
        for key, value in said.items()
    }
    rotary = said.get("rope_parameters")
    if not isinstance(rotary, dict):
        return found
    older: dict[str, Any] = {}
    if isinstance(full := rotary.get(_FULL), dict) and isinstance(sliding := rotary.get(_SLIDING), dict):  # pyright: ignore
        older["rope_local_base_freq"] = sliding.get("rope_theta")
        rotary = full  # pyright: ignore[reportUnknownVariableType]
    scaling: dict[str, Any] = dict(rotary)  # pyright: ignore[reportUnknownArgumentType]
    for name in ("rope_theta", "partial_rotary_factor"):
        older[name] = scaling.pop(name, None)
    if scaling.get("rope_type", "default") != "default":
        older["rope_scaling"] = scaling
    return {**{key: value for key, value in older.items() if value is not None}, **found}
