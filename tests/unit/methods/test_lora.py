"""Adapters: PEFT's names, and values that depend on seed, name and shape alone."""

import re
from typing import Any

import pytest
import torch
import transformers

from shardwise.methods.lora import add_adapters, initial_adapter, is_adapter
from shardwise.models.load import build_on_meta
from shardwise.spec.job.keys import LoraSpec
from tests.unit.models.test_anatomy import SMALL

NAME = "model.layers.0.self_attn.q_proj.lora_A.default.weight"


def adapted(**settings: Any) -> dict[str, torch.nn.Parameter]:
    model = build_on_meta(transformers.LlamaConfig(**SMALL), attn_implementation="sdpa")
    add_adapters(model, LoraSpec(r=4, **settings), base_model="base")
    return dict(model.named_parameters())


def test_all_linear_means_every_matrix_of_every_block_and_not_the_head() -> None:
    parameters = adapted()
    adapters = {name for name in parameters if is_adapter(name)}
    assert len(adapters) == 3 * 7 * 2
    assert all(parameter.requires_grad == (name in adapters) for name, parameter in parameters.items())
    assert not any("lm_head" in name or "embed" in name for name in adapters)
    assert len([name for name in adapted(target_modules=["q_proj", "v_proj"]) if is_adapter(name)]) == 3 * 2 * 2


def test_an_adapter_says_which_layers_all_linear_passes_over() -> None:
    """Routers that give several results, beside what a model is without: to PEFT they are linear layers as others."""
    config = {**SMALL, "num_local_experts": 2, "num_experts_per_tok": 1}
    for exclude in (None, "tower.*"):
        model = build_on_meta(transformers.PhimoeConfig(**config), attn_implementation="sdpa")
        made = add_adapters(model, LoraSpec(r=4), base_model="base", exclude=exclude).peft_config["default"]
        assert not any("router" in name for name, _ in model.named_parameters() if is_adapter(name))
        said = made.exclude_modules
        for name, left in (("model.layers.0.mlp.router", True), ("tower.a", exclude is not None), ("q_proj", False)):
            found = name in said if isinstance(said, list) else re.fullmatch(said, name) is not None
            assert found == left, (exclude, name)


def initial(name: str, shape: tuple[int, ...], *, seed: int) -> torch.Tensor:
    make = initial_adapter(name, shape, seed=seed)
    assert make is not None
    return make()


def test_initial_values_depend_on_seed_name_and_shape_alone() -> None:
    first = initial(NAME, (4, 32), seed=1)
    torch.manual_seed(5)
    assert torch.equal(first, initial(NAME, (4, 32), seed=1))
    assert not torch.equal(first, initial(NAME, (4, 32), seed=2))
    assert not torch.equal(first, initial(NAME.replace("0", "1"), (4, 32), seed=1))
    assert initial_adapter("model.layers.0.self_attn.q_proj.base_layer.weight", (4, 4), seed=1) is None


def test_initial_values_are_distributed_as_in_peft() -> None:
    ours = initial(NAME, (64, 1024), seed=1)
    reference = torch.nn.init.kaiming_uniform_(torch.empty(64, 1024), a=5**0.5)
    assert ours.std().item() == pytest.approx(reference.std().item(), rel=0.02)
    assert ours.abs().max().item() <= 1 / 1024**0.5
    assert not initial(NAME.replace("lora_A", "lora_B"), (32, 4), seed=1).any()


@pytest.mark.parametrize("revision", [None, "b" * 40])
def test_what_is_saved_names_the_revision_of_a_base_on_the_hub(revision: str | None) -> None:
    model = build_on_meta(transformers.LlamaConfig(**SMALL), attn_implementation="sdpa")
    config = add_adapters(model, LoraSpec(r=4), base_model="org/name", revision=revision).peft_config["default"]
    assert (config.base_model_name_or_path, config.revision) == ("org/name", revision)


def test_under_autocast_inputs_are_read_as_they_are_and_nothing_else_changes() -> None:
    """PEFT's copies of inputs in float32 are cast back before they are used: bit-equal without them."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).to(torch.bfloat16)
    add_adapters(model, LoraSpec(r=4), base_model="base")
    model.load_state_dict({name: torch.randn(p.shape) / 8 for name, p in model.named_parameters()}, assign=True)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.to(torch.float32 if is_adapter(name) else torch.bfloat16)
    layers = [module for module in model.modules() if hasattr(module, "cast_input_dtype_enabled")]

    def trained(*, casts: bool) -> tuple[int, list[torch.Tensor]]:
        model.zero_grad()
        for layer in layers:
            assert casts or not vars(layer)["cast_input_dtype_enabled"]
            vars(layer)["cast_input_dtype_enabled"] = casts
        kept: dict[int, torch.Tensor] = {}  # held, so that no address comes twice
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: kept.update({t.data_ptr(): t}) or t, lambda t: t),
            torch.autocast("cpu", dtype=torch.bfloat16),
        ):
            logits = model(input_ids=torch.arange(60).view(2, 30)).logits
        logits.float().square().mean().backward()
        return sum(t.nbytes for t in kept.values()), [
            logits,
            *(p.grad for p in model.parameters() if p.grad is not None),
        ]

    (lean, ours), (fat, peft) = trained(casts=False), trained(casts=True)
    assert len(ours) == 1 + 2 * len(layers)
    assert all(torch.equal(one, other) for one, other in zip(ours, peft, strict=True))
    assert lean < fat
