"""Parts of a model are found by structure; transformers slices matrices as the catalogue says."""

from typing import Any

import pytest
import torch
import transformers

from shardwise.catalog.config import shape_from_data
from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import find_anatomy, tensor_plan
from shardwise.models.load import build_on_meta
from shardwise.models.stage import final_norm
from shardwise.spec.support.splits import TENSOR_FAMILIES
from tests.dist.worlds import installed
from tests.unit.catalog.small import small_config

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 64}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64}
CONFIGS = [
    (transformers.LlamaConfig(**SMALL, tie_word_embeddings=False), True),
    (transformers.GPT2Config(**GPT2), True),
    (transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=30.0), False),
]
WORDS = {"rows": "colwise", "columns": "rowwise"}
#: Experts: the plan of expert parallelism is followed, that of tensor parallelism slices each.
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
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    with pytest.raises(UnsupportedError, match="mixtral cannot be built here: unsupported operand"):
        build_on_meta(transformers.MixtralConfig(**SMALL, rope_parameters=yarn), attn_implementation="eager")
    with pytest.raises(UnsupportedError, match="gpt2 has no tensor parallel plan of its blocks in transformers"):
        tensor_plan(transformers.GPT2Config())


@pytest.mark.parametrize("family", installed(tuple(TENSOR_FAMILIES)))
def test_the_catalogue_slices_matrices_as_transformers_does(family: str) -> None:
    plan = tensor_plan(transformers.AutoConfig.for_model(family))
    shape = shape_from_data(small_config(family), file="config.json")
    stated = {matrix.name: matrix for kind in shape.kinds for matrix in kind.matrices}
    planned = {name: plan.get(name) for name in stated}
    sliced = {name: matrix.sliced_by for name, matrix in stated.items() if matrix.sliced_by is not None}
    assert all(sliced.get(name) == "count" for name, matrix in stated.items() if matrix.stacked)
    ours = {name: WORDS[cut] for name, cut in sliced.items() if cut != "count"}
    assert ours == {name: style for name, style in planned.items() if style in WORDS.values() and name not in STACKS}
    whole = {name for name, style in plan.items() if style == "replicated_with_grad_allreduce"}
    inside = {norm.name for norm in shape.norms if norm.name.startswith("self_attn.") and norm.size == shape.head_dim}
    assert whole <= inside if shape.has_experts else whole == inside  # what a plan leaves out stays whole


def test_a_plan_may_name_the_tied_embedding_and_a_final_norm_without_weights() -> None:
    config = transformers.LlamaConfig()  # transformers 5.17 adds this entry when it builds a tied model
    blocks = dict(config.base_model_tp_plan)
    config.base_model_tp_plan = {**blocks, "embed_tokens": "embedding_rowwise"}
    assert tensor_plan(config) == {name.removeprefix("layers.*."): style for name, style in blocks.items()}
    anatomy = find_anatomy(build_on_meta(transformers.OlmoConfig(**SMALL), attn_implementation="sdpa"))
    assert final_norm(anatomy, width=32) is anatomy.model.get_submodule("model.norm")
