"""All known families of models, by the `model_type` of their config.json."""

import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from shardwise.catalog.families.layer_norm import LAYER_NORM
from shardwise.catalog.families.llama import LLAMA_LIKE
from shardwise.catalog.families.with_experts import EXPERTS

_FOLDER = resources.files("shardwise.catalog") / "families"
_CONFIGURATIONS: dict[str, dict[str, Any]] = json.loads((_FOLDER / "configurations.json").read_text(encoding="utf-8"))
_RULES = {**LLAMA_LIKE, **LAYER_NORM, **EXPERTS}
#: model_type -> its rules, with how its config.json is read.
FAMILIES = {kind: replace(rules, **_CONFIGURATIONS[kind]) for kind, rules in _RULES.items()}
#: model_type -> types of JSON -> the keys that transformers' class of it takes in these alone.
TYPES: dict[str, dict[str, list[str]]] = json.loads((_FOLDER / "types.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """The language model inside a model of text and images: its `model_type`, where its
    `text_config` states none, and the names of its backbone and head in transformers' tree."""

    family: str
    backbone: str = "model.language_model"
    head: str = "lm_head"


#: model_type of a model of text and images that is read without a build -> its language model.
TEXT_PARTS = {
    "gemma3": TextPart(family="gemma3_text"),
    "llama4": TextPart(family="llama4_text", backbone="language_model.model", head="language_model.lm_head"),
}
