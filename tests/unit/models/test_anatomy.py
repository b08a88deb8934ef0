"""Parts are found by structure, also of a language model inside a model of more than text."""

import json
import re
from typing import Any

import pytest
import torch
import transformers

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.models import known_models
from shardwise.errors import ModelError, UnsupportedError
from shardwise.models.anatomy import find_anatomy, tensor_plan
from shardwise.models.built.shape import built_shape
from shardwise.models.load import build_on_meta
from shardwise.models.stage import final_norm
from shardwise.models.wrapper import auto_class, find_inside, leave_others, pattern_of
from shardwise.spec.support.splits import TENSOR_FAMILIES
from tests.dist.tiny import tiny_config
from tests.dist.worlds import installed, wrapper_config

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 64}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64}
CONFIGS = [
    (transformers.LlamaConfig(**SMALL, tie_word_embeddings=False), True),
    (transformers.GPT2Config(**GPT2), True),
    (transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=30.0), False),
]
WORDS = {"rows": "colwise", "columns": "rowwise"}
#: Experts: of these the plans of expert and of tensor parallelism are followed.
STACKS = [f"{module}.experts.down_proj" for module in ("mlp", "feed_forward", "block_sparse_moe")]


@pytest.mark.parametrize(("config", "plain"), CONFIGS)
def test_embedding_blocks_and_head_are_found(config: Any, plain: bool) -> None:
    anatomy = find_anatomy(build_on_meta(config, attn_implementation="eager"))
    assert len(anatomy.blocks) == 3
    assert anatomy.embedding.weight.shape == anatomy.head.weight.shape == (64, 32)
    assert anatomy.tied == config.tie_word_embeddings
    assert anatomy.plain_head == plain  # Gemma 2 caps its logits


def test_what_cannot_be_built_or_sliced_is_refused_in_a_sentence() -> None:
    with torch.device("meta"):
        model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL))
    with pytest.raises(UnsupportedError, match="is not a causal language model"):
        find_anatomy(model)
    with pytest.raises(UnsupportedError, match="llama cannot be built here"):
        build_on_meta(transformers.LlamaConfig(**SMALL), attn_implementation="flash_attention_2")
    with pytest.raises(UnsupportedError, match="gpt2 has no tensor parallel plan of its blocks in transformers"):
        tensor_plan(transformers.GPT2Config())


def config_of(family: str) -> Any:
    if family not in installed([family]):
        pytest.skip(f"the installed transformers has no {family}")
    return transformers.AutoConfig.for_model(family)


@pytest.mark.parametrize("family", TENSOR_FAMILIES)
def test_the_catalogue_slices_matrices_as_transformers_does(family: str) -> None:
    plan = tensor_plan(config_of(family))
    routed = {"num_experts_per_tok": 2} if family == "deepseek_v2" else {}
    shape = shape_from_data({"model_type": family, **routed}, file="config.json")
    stated = {matrix.name: matrix for kind in shape.kinds for matrix in kind.matrices}
    planned = {name: plan.get(name) for name in stated}
    sliced = {name: matrix.sliced_by for name, matrix in stated.items() if matrix.sliced_by is not None}
    assert all(sliced.get(name) == "count" for name, matrix in stated.items() if matrix.stacked)
    ours = {name: WORDS[cut] for name, cut in sliced.items() if cut != "count"}
    assert ours == {name: style for name, style in planned.items() if style in WORDS.values() and name not in STACKS}
    whole = {name for name, style in plan.items() if style == "replicated_with_grad_allreduce"}
    inside = {norm.name for norm in shape.norms if norm.name.startswith("self_attn.")}
    assert whole <= inside if shape.has_experts else whole == inside  # what a plan leaves out stays whole
    assert all(norm.size == shape.head_dim for norm in shape.norms if norm.name in whole)


def test_a_plan_may_name_the_tied_embedding_and_a_final_norm_without_weights() -> None:
    config = config_of("llama")  # transformers 5.17 adds this entry when it builds a tied model
    blocks = dict(config.base_model_tp_plan)
    config.base_model_tp_plan = {**blocks, "embed_tokens": "embedding_rowwise"}
    assert tensor_plan(config) == {name.removeprefix("layers.*."): style for name, style in blocks.items()}
    anatomy = find_anatomy(build_on_meta(transformers.OlmoConfig(**SMALL), attn_implementation="sdpa"))
    assert final_norm(anatomy, width=32) is anatomy.model.get_submodule("model.norm")


TEXT: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
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
    config = wrapper_config(kind, {"model_type": INSIDE[kind][0], **TEXT})
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
    config = wrapper_config("paligemma", {"model_type": "gemma", **TEXT, "use_bidirectional_attention": True})
    with pytest.raises(ModelError, match="its language model lets tokens of a prompt see those after them"):
        built_shape(json.loads(config.to_json_string()), file="f")


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
