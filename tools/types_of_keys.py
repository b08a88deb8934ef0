"""Keeps types.json: which types of JSON transformers' configuration classes take, key by key.

python tools/types_of_keys.py --write    # writes it; without, exits 1 where it says otherwise
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from shardwise.catalog.families import known

FILE = Path(known.__file__).with_name("types.json")
VALUES = {"int": 1, "float": 0.5, "bool": True, "NoneType": None, "str": "x", "list": [], "dict": {}}


def types_of(theirs: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, types) of a configuration class, with those of the classes inside it."""
    for key in sorted({*theirs().to_dict(), *theirs.attribute_map} - {"model_type", "architectures"}):
        if key in theirs.sub_configs:
            yield from types_of(theirs.sub_configs[key], f"{prefix}{key}.")
        taken = [name for name, value in VALUES.items() if takes(theirs, key, value)]
        if 0 < len(taken) < len(VALUES):
            yield prefix + key, " ".join(taken)


def takes(theirs: Any, key: str, value: Any) -> bool:
    """Whether a value passes its check of types."""
    try:
        theirs.from_dict({key: value})
    except Exception as error:  # noqa: BLE001 - of a value that has the right type, whatever a class raises
        names = (f"'{name}'" in str(error) for name in (key, theirs.attribute_map.get(key)))
        return not (isinstance(error, StrictDataclassFieldValidationError) and any(names))
    return True


def types() -> dict[str, dict[str, list[str]]]:
    """Family -> types -> the keys that are held to them."""
    found = {kind: dict(types_of(CONFIG_MAPPING[kind])) for kind in known.FAMILIES}
    return {
        k: {one: [key for key in of if of[key] == one] for one in sorted({*of.values()})} for k, of in found.items()
    }


if __name__ == "__main__":
    found = types()
    if "--write" in sys.argv[1:]:
        FILE.write_text(
            "{\n" + ",\n".join(f'"{k}": {json.dumps(of)}' for k, of in found.items()) + "\n}\n", encoding="utf-8"
        )
    sys.exit(0 if json.loads(FILE.read_text(encoding="utf-8")) == found else f"{FILE} says otherwise: --write")
