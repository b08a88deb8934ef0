"""A Llama with one thing that is odd: each is refused by what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardwise.errors import ModelError
from shardwise.models import shape as module
from shardwise.models.anatomy import Anatomy, find_anatomy
from tests.unit.catalog.small import small_config


def scaled(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (args[0] * 2, *args[1:])


def between_blocks(model: Any) -> None:
    model.model.layers[1].register_forward_pre_hook(scaled)


def behind_the_norm(model: Any) -> None:
    def change(_module: nn.Module, _args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * 2
        return output

    model.model.register_forward_hook(change)


def other_logits(model: Any) -> None:
    def change(_module: nn.Module, _args: Any, output: Any) -> Any:
        output.logits = torch.empty(2, 8, 97, device="meta")
        return output

    model.register_forward_hook(change)


def two_look_ups(model: Any) -> None:
    def look_up(_module: nn.Module, _args: Any, words: Any) -> None:
        model.model.embed_tokens(words["input_ids"])

    model.model.register_forward_pre_hook(look_up, with_kwargs=True)


def larger_head(model: Any) -> None:
    model.lm_head = nn.Linear(64, 98, bias=False, device="meta")


def other_final_norm(model: Any) -> None:
    model.model.norm = nn.LayerNorm(64, device="meta")


def unknown_norm(model: Any) -> None:
    model.model.layers[2].input_layernorm = nn.RMSNorm(64, device="meta")


def norm_with_more(model: Any) -> None:
    model.model.layers[2].input_layernorm.scale = nn.Parameter(torch.empty(1, device="meta"))


def matrix_run_twice(model: Any) -> None:
    def run(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        module.get_submodule("up_proj")(args[0])

    model.model.layers[0].mlp.register_forward_pre_hook(run)


def shared_matrix(model: Any) -> None:
    layers = model.model.layers
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight


def narrow_gate(model: Any) -> None:
    model.model.layers[0].mlp.gate_proj = nn.Linear(64, 1, bias=False, device="meta")


def keys_of_something_else(model: Any) -> None:
    model.model.layers[0].self_attn.k_proj.register_forward_pre_hook(scaled)


def scaled_attention(model: Any) -> None:
    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(scaled)


def plain_mlp_without_end(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda _module, args, _output: args[0])


def sees_all(model: Any) -> None:
    model.model.layers[3].self_attn.is_causal = False


def projected(model: Any) -> None:
    model.extra = nn.Linear(64, 64, device="meta")
    model.model.register_forward_hook(lambda _module, _args, output: model.extra(output[0]) is None or output)


ODD: dict[Callable[[Any], None], str] = {
    between_blocks: "something runs between its blocks",
    behind_the_norm: "what its backbone returns is not what its last block, or a norm behind that, gives",
    other_logits: "its logits are not made by its head of what its backbone returns",
    two_look_ups: "its embedding was seen to run 2 times in a forward; once is expected",
    larger_head: r"its head is \(98, 64\) and its embedding \(97, 64\); one shape is known",
    other_final_norm: r"its norms are of 2 kinds \(layer, rms\); one is known",
    unknown_norm: r"its norm model.layers.2.input_layernorm \(RMSNorm\) .*, as no known norm does",
    norm_with_more: "model.layers.2.input_layernorm has the parameters weight, scale; a weight, and a bias or none",
    matrix_run_twice: "in its block model.layers.0 model.layers.0.mlp.up_proj runs more than once",
    shared_matrix: "model.layers.0.mlp.up_proj.weight is shared by several modules",
    narrow_gate: "in its block model.layers.0 an MLP widens to 1 and 112 and is read as 112 wide",
    keys_of_something_else: "queries, keys and values are made of different tensors",
    scaled_attention: "what attention gives is not read by one matrix as it is",
    plain_mlp_without_end: "what attention and the MLP give does not end in the residual stream",
    sees_all: "in its block model.layers.3 attention is not seen to be causal: a token may see those after it",
    projected: "extra stands outside its blocks, and is not the head",
}


@pytest.mark.parametrize("change", ODD, ids=lambda change: change.__name__)
def test_what_is_odd_is_refused_by_name(change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    build = module._built

    def changed(config: Any) -> Anatomy:
        model = build(config).model
        change(model)
        return find_anatomy(model)

    monkeypatch.setattr(module, "_built", changed)
    with pytest.raises(ModelError, match=ODD[change]):
        module.built_shape(small_config("llama"), file="config.json")


def test_positions_that_are_not_said_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = module._config

    def without(data: dict[str, Any]) -> Any:
        config = read(data)
        vars(config)["max_position_embeddings"] = None
        return config

    monkeypatch.setattr(module, "_config", without)
    with pytest.raises(ModelError, match=r"does not say how many positions it has \(max_position_embeddings\)"):
        module.built_shape(small_config("llama"), file="config.json")
