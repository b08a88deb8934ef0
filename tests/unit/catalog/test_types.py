"""`types.json` says which types of JSON transformers' configuration classes take, key by key."""

from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from shardwise.catalog.families.known import FAMILIES, TYPES

VALUES = {"int": 1, "float": 0.5, "bool": True, "NoneType": None, "str": "x", "list": [], "dict": {}}


def checked(kind: str) -> dict[str, list[str]]:
    """Types -> the keys that are held to them."""
    return _grouped(dict(_of_class(CONFIG_MAPPING[kind])))


def _grouped(types: dict[str, str]) -> dict[str, list[str]]:
    return {one: sorted(key for key in types if types[key] == one) for one in sorted({*types.values()})}


def _of_class(theirs: Any, prefix: str = "") -> Any:
    for key in {*theirs().to_dict(), *theirs.attribute_map} - {"model_type", "architectures", "transformers_version"}:
        inner = theirs.sub_configs.get(key)
        if inner is not None:
            yield from _of_class(inner, f"{prefix}{key}.")
        taken = [name for name, value in VALUES.items() if _takes(theirs, key, value)]
        if 0 < len(taken) < len(VALUES):
            yield prefix + key, " ".join(taken)


def _takes(theirs: type[PreTrainedConfig], key: str, value: Any) -> bool:
    try:
        theirs.from_dict({key: value})
    except StrictDataclassFieldValidationError as error:
        return f"'{key}'" not in str(error) and f"'{theirs.attribute_map.get(key)}'" not in str(error)
    except Exception:  # noqa: BLE001 - of a value that has the right type
        pass
    return True


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_key_is_held_to_the_types_that_transformers_holds_it_to(kind: str) -> None:
    assert TYPES[kind] == checked(kind)
