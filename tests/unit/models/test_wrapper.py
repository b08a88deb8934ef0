"""The language model inside a model of more than text is found, named and counted."""

import json
import re
from typing import Any

import pytest

from shardwise.catalog.models import known_models
from shardwise.errors import ModelError
from shardwise.models.built.shape import built_shape
from shardwise.models.load import build_on_meta
from shardwise.models.wrapper import auto_class, find_inside, leave_others, pattern_of
from tests.dist.tiny import tiny_config
from tests.dist.worlds import installed, wrapper_config
from tests.unit.configs import config


def small(family: str, **others: Any) -> dict[str, Any]:
    return config(family, 32, 48, 2, 4, 2, vocab=160, head_dim=8, pad_token_id=0, **others)


#: Wrapper -> its language model, and the name of the list of its blocks.
INSIDE = {
    "aria": ("aria_text", "model.language_model.layers"),
    "cohere2_vision": ("cohere2", "model.language_model.layers"),
    "gemma3": ("gemma3_text", "model.language_model.layers"),
    "idefics3": ("llama", "model.text_model.layers"),
    "internvl": ("qwen2", "model.language_model.layers"),
    "llama4": ("llama4_text", "language_model.model.layers"),
    "llava_next": ("llama", "model.language_model.layers"),
    "mistral3": ("mistral", "model.language_model.layers"),
    "qwen3_vl": ("qwen3_vl_text", "model.language_model.layers"),
}


@pytest.mark.parametrize("name", ["gemma-3-4b", "gemma-3-27b", "llama-4-scout"])
def test_the_catalogue_counts_what_is_built(name: str) -> None:
    known = known_models()[name]
    built = built_shape(known.config, file=name)
    for part in ("num_parameters", "wrapper", "names"):
        assert getattr(built, part) == getattr(known.shape, part), part


@pytest.mark.parametrize("kind", installed(tuple(INSIDE)))
def test_every_parameter_is_the_language_model_s_or_lies_beside_it(kind: str) -> None:
    config = wrapper_config(kind, small(INSIDE[kind][0]))
    whole = build_on_meta(config, attn_implementation="eager")
    shape = built_shape(json.loads(config.to_json_string()), file="f")
    assert (shape.family, shape.names.blocks) == INSIDE[kind]
    assert shape.wrapper.family == kind
    assert shape.num_parameters + shape.wrapper.frozen_parameters == sum(p.numel() for p in whole.parameters())
    for name in filter(None, (shape.names.embedding, shape.names.head, shape.names.final_norm, shape.names.blocks)):
        whole.get_submodule(name)
    inside = find_inside(whole)
    before = {name for name, _ in whole.named_modules()} | {name for name, _ in whole.named_parameters()}
    pattern = pattern_of(leave_others(whole, inside))
    left = {name for name, _ in whole.named_modules()} | {name for name, _ in whole.named_parameters()}
    assert {name for name in before if re.fullmatch(pattern, name)} == before - left
    assert sum(p.numel() for p in whole.parameters()) == shape.num_parameters


def test_one_whose_text_sees_ahead_is_refused() -> None:
    config = wrapper_config("paligemma", small("gemma", use_bidirectional_attention=True))
    with pytest.raises(ModelError, match="its language model lets tokens of a prompt see those after them"):
        built_shape(json.loads(config.to_json_string()), file="f")


#: Wrapper -> why its language model is not trained on text.
REFUSED = {
    "blip-2": "Blip2ForConditionalGeneration takes no text without pixel_values$",
    "voxtral_realtime": r"its forward raises TypeError: linear\(\): ",
}


@pytest.mark.parametrize("kind", installed(tuple(REFUSED)))
def test_one_that_runs_on_no_text_is_refused(kind: str) -> None:
    """It asks for images or sound."""
    with pytest.raises(ModelError, match=REFUSED[kind]):
        built_shape(json.loads(tiny_config(kind).to_json_string()), file="f")


@pytest.mark.parametrize("kind", installed(("qwen3_5", "qwen3_5_moe")))
def test_a_language_model_inside_another_splits_as_it_does_alone(kind: str) -> None:
    config = tiny_config(kind)
    both = (config.get_text_config(), config)
    alone, whole = (built_shape(json.loads(one.to_json_string()), file="f") for one in both)
    assert whole.built == alone.built and "slices" in (alone.built or ())


@pytest.mark.parametrize("kind", installed(("mistral4",)))
def test_a_language_model_that_transformers_lists_with_wrappers_alone_is_built(kind: str) -> None:
    config = tiny_config(kind)
    assert auto_class(config).__name__ == "AutoModelForImageTextToText"
    shape = built_shape(json.loads(config.to_json_string()), file="f")
    model = build_on_meta(config, attn_implementation="eager")
    assert shape.wrapper is None and shape.num_parameters == sum(p.numel() for p in model.parameters())
