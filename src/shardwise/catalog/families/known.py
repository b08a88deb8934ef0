"""All known families of models, by the `model_type` of their config.json."""

from dataclasses import dataclass

from shardwise.catalog.families.family import Family
from shardwise.catalog.families.layer_norm import LAYER_NORM
from shardwise.catalog.families.llama import LLAMA_LIKE
from shardwise.catalog.families.with_experts import EXPERTS

#: model_type -> its rules.
FAMILIES: dict[str, Family] = {**LLAMA_LIKE, **LAYER_NORM, **EXPERTS}


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """The language model inside a model of text and images: its `model_type`, where its `text_config` states none, and
    the names of its backbone and its head in transformers' module tree."""

    family: str
    backbone: str = "model.language_model"
    head: str = "lm_head"


#: model_type of a model of text and images that is read without a build -> its language model.
TEXT_PARTS = {
    "gemma3": TextPart(family="gemma3_text"),
    "llama4": TextPart(family="llama4_text", backbone="language_model.model", head="language_model.lm_head"),
}
