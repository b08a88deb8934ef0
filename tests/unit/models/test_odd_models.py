"""A Llama with one thing that is odd: its parameters are counted, and it is not taken for a Llama."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from shardwise.errors import ModelError, UnsupportedError
from shardwise.models.anatomy import find_anatomy
from shardwise.models.built import shape as module
from tests.unit.catalog.small import small_config


def scaled(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (args[0] * 2, *args[1:])


def twice_the_stream(_module: nn.Module, _args: Any, output: Any) -> Any:
    output.last_hidden_state = output.last_hidden_state * 2
    return output


def other_logits(_module: nn.Module, _args: Any, output: Any) -> Any:
    output.logits = torch.empty(2, 8, 97, device="meta")
    return output


def linear(rows: int) -> nn.Linear:
    return nn.Linear(64, rows, bias=False, device="meta")


def put(place: str, value: Any) -> Callable[[Any], object]:
    """A change that sets an attribute of the model or of a module of it."""
    owner, _, name = place.rpartition(".")
    return lambda model: setattr(model.get_submodule(owner), name, value)


def before(place: str, hook: Any) -> Callable[[Any], object]:
    return lambda model: model.get_submodule(place).register_forward_pre_hook(hook)


def behind(place: str, hook: Any) -> Callable[[Any], object]:
    return lambda model: model.get_submodule(place).register_forward_hook(hook)


def shared_matrix(model: Any) -> None:
    layers = model.model.layers
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight


def look_up_first(model: Any) -> None:
    def look_up(_module: nn.Module, _args: Any, words: Any) -> None:
        model.model.embed_tokens(words["input_ids"])

    model.model.register_forward_pre_hook(look_up, with_kwargs=True)


NORM, BLOCK = "model.layers.2.input_layernorm", "in its block model.layers.0"
#: What is changed of a model -> what is said.
ODD: list[tuple[Callable[[Any], object], str]] = [
    (before("model.layers.1", scaled), "something runs between its blocks"),
    (
        behind("model", twice_the_stream),
        "what its backbone returns is not what its last block, or a norm behind that, ",
    ),
    (behind("", other_logits), "its logits are not made by its head of what its backbone returns"),
    (look_up_first, "its embedding was seen to run 2 times in a forward; once is expected"),
    (put("model.norm", nn.LayerNorm(64, device="meta")), r"its norms are of 2 kinds \(layer, rms\); one is known"),
    (put(NORM, nn.RMSNorm(64, device="meta")), rf"its norm {NORM} \(RMSNorm\) .*, as no known norm does"),
    (
        put(f"{NORM}.scale", nn.Parameter(torch.empty(1, device="meta"))),
        f"{NORM} has the parameters weight, scale; a weight, and a bias or none",
    ),
    (
        before("model.layers.0.mlp", lambda module, args: module.up_proj(args[0]) is None or None),
        f"{BLOCK} model.layers.0.mlp.up_proj runs more than once",
    ),
    (put("model.layers.1.mlp.act_fn", nn.GELU()), "its blocks differ in activation: "),
    (shared_matrix, "model.layers.0.mlp.up_proj.weight is shared by several modules"),
    (put("model.layers.0.mlp.gate_proj", linear(1)), f"{BLOCK} an MLP widens to 1 and 112 and is read as 112 wide"),
    (before("model.layers.0.self_attn.k_proj", scaled), "queries, keys and values are made of different tensors"),
    (
        behind("model.layers.0.mlp", lambda _module, args, _output: args[0]),
        "what attention and the MLP give does not end in the residual stream",
    ),
]


@pytest.mark.parametrize(("change", "message"), ODD, ids=[message[:40] for _, message in ODD])
def test_no_rules_forecast_what_is_odd(change, message, monkeypatch) -> None:
    build, recognised, changed = module._built, module._Reading._recognised, list[Any]()

    def odd(config: Any) -> Any:
        model = build(config)[0].model
        change(model)
        changed.append(model)
        return find_anatomy(model), None

    def must_refuse(*asked: Any) -> Any:
        with pytest.raises(UnsupportedError, match=message) as error:
            recognised(*asked)
        raise error.value

    monkeypatch.setattr(module, "_built", odd)
    monkeypatch.setattr(module._Reading, "_recognised", must_refuse)
    shape = module.built_shape(small_config("llama"), file="config.json")
    assert shape.counted
    assert shape.num_parameters == sum(parameter.numel() for parameter in changed[0].parameters())


def test_a_head_of_another_shape_than_the_embedding_is_refused(monkeypatch) -> None:
    build = module._built

    def odd(config: Any) -> Any:
        model = build(config)[0].model
        put("lm_head", linear(98))(model)
        return find_anatomy(model), None

    monkeypatch.setattr(module, "_built", odd)
    with pytest.raises(ModelError, match=r"its head is \(98, 64\) and its embedding \(97, 64\)"):
        module.built_shape(small_config("llama"), file="config.json")
