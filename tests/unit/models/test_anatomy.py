"""The parts of a model are found by structure, in families that name them differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import find_anatomy
from shardwise.models.load import build_on_meta

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 64}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64}
CONFIGS = [
    (transformers.LlamaConfig(**SMALL, tie_word_embeddings=False), True),
    (transformers.GPT2Config(**GPT2), True),
    (transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=30.0), False),
]


@pytest.mark.parametrize(("config", "plain"), CONFIGS)
def test_embedding_blocks_and_head_are_found(config: Any, plain: bool) -> None:
    anatomy = find_anatomy(build_on_meta(config, attn_implementation="eager"))
    assert len(anatomy.blocks) == 3
    assert anatomy.embedding.weight.shape == anatomy.head.weight.shape == (64, 32)
    assert anatomy.tied == config.tie_word_embeddings
    assert anatomy.plain_head == plain  # Gemma 2 caps its logits


def test_parameters_are_on_meta_and_buffers_are_real() -> None:
    model = build_on_meta(CONFIGS[0][0], attn_implementation="sdpa")
    assert all(parameter.is_meta for parameter in model.parameters())
    buffers = dict(model.named_buffers())
    assert buffers
    assert all(not buffer.is_meta and bool(torch.isfinite(buffer).all()) for buffer in buffers.values())


def test_a_model_without_a_head_is_refused() -> None:
    with torch.device("meta"):
        model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL))
    with pytest.raises(UnsupportedError, match="is not a causal language model"):
        find_anatomy(model)


def test_an_attention_that_is_not_installed_is_a_sentence() -> None:
    with pytest.raises(UnsupportedError, match="llama cannot be built here"):
        build_on_meta(transformers.LlamaConfig(**SMALL), attn_implementation="flash_attention_2")
