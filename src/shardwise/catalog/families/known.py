"""All known families of models, by the `model_type` of their config.json."""

from __future__ import annotations

from shardwise.catalog.families.family import Family
from shardwise.catalog.families.layer_norm import LAYER_NORM
from shardwise.catalog.families.llama import LLAMA_LIKE
from shardwise.catalog.families.with_experts import EXPERTS

#: model_type -> its rules.
FAMILIES: dict[str, Family] = {**LLAMA_LIKE, **LAYER_NORM, **EXPERTS}

#: model_type of a model of text and images -> that of the language model in its `text_config`, where it states none.
TEXT_PARTS = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
