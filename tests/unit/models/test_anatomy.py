"""The parts of a model are found by structure, in families that name them differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.models.anatomy import find_anatomy
from shardwise.models.load import build_on_meta

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64, "intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "mistral": ("MistralConfig", {**SMALL, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2Config", {**SMALL, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3Config", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64}),
    "gpt_neox": ("GPTNeoXConfig", SMALL),
    "phi3": ("Phi3Config", {**SMALL, "pad_token_id": 0}),
    "gemma": ("GemmaConfig", {**SMALL, "num_key_value_heads": 2, "head_dim": 8}),
}


def build(family: str, **changes: Any) -> nn.Module:
    name, settings = FAMILIES[family]
    config = getattr(transformers, name)(**{**settings, **changes})
    return build_on_meta(config, attn_implementation="eager" if family == "gpt2" else "sdpa")


@pytest.mark.parametrize("family", FAMILIES)
def test_embedding_blocks_and_head_are_found(family: str) -> None:
    anatomy = find_anatomy(build(family))
    assert len(anatomy.blocks) == 3
    assert anatomy.embedding.weight.shape == (64, 32)
    assert anatomy.head.weight.shape == (64, 32)
    assert anatomy.plain_head


@pytest.mark.parametrize("tied", [False, True])
def test_tying_is_found_by_identity(tied: bool) -> None:
    assert find_anatomy(build("llama", tie_word_embeddings=tied)).tied == tied


def test_parameters_are_on_meta_and_buffers_are_real() -> None:
    model = build("llama")
    assert all(parameter.is_meta for parameter in model.parameters())
    buffers = dict(model.named_buffers())
    assert buffers
    assert all(not buffer.is_meta and bool(torch.isfinite(buffer).all()) for buffer in buffers.values())


def test_a_head_that_caps_its_logits_is_not_plain() -> None:
    config = transformers.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=30.0)
    assert not find_anatomy(build_on_meta(config, attn_implementation="eager")).plain_head


def test_a_model_without_a_head_is_refused() -> None:
    with torch.device("meta"):
        model = transformers.LlamaModel(transformers.LlamaConfig(**SMALL))
    with pytest.raises(UnsupportedError, match="is not a causal language model"):
        find_anatomy(model)


def test_an_attention_that_is_not_installed_is_a_sentence() -> None:
    with pytest.raises(UnsupportedError, match="llama cannot be built here"):
        build_on_meta(transformers.LlamaConfig(**SMALL), attn_implementation="flash_attention_2")
