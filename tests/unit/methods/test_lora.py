"""Adapters: PEFT's names, values of seed, name and shape, and joined products."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from functorch.compile import make_boxed_func
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from shardwise.errors import UnsupportedError
from shardwise.methods.lora import add_adapters, find_keys, initial_adapter, is_adapter, saved_key
from shardwise.methods.lora_products import join_products
from shardwise.models.load import build_on_meta
from shardwise.parallel.recompute import apply_recompute
from shardwise.spec.job.keys import LoraSpec
from tests.dist.tiny import tiny_config
from tests.dist.worlds import installed
from tests.marks import first
from tests.unit.models.test_anatomy import GPT2, SMALL

NAME = "model.layers.0.self_attn.q_proj.lora_A.default.weight"
BIASED = transformers.Qwen2Config(**SMALL, num_key_value_heads=2)
CONFIGS = {"llama": transformers.LlamaConfig(**SMALL), "qwen2, whose matrices have biases": BIASED}


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
    """Routers that give several results; to PEFT they are linear layers as others."""
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
    return initial_adapter(name, shape, seed=seed)()


def test_initial_values_are_pefts_and_depend_on_seed_name_and_shape_alone() -> None:
    first = initial(NAME, (4, 32), seed=1)
    torch.manual_seed(5)
    assert torch.equal(first, initial(NAME, (4, 32), seed=1))
    assert not torch.equal(first, initial(NAME, (4, 32), seed=2))
    assert not torch.equal(first, initial(NAME.replace("0", "1"), (4, 32), seed=1))
    assert initial_adapter("model.layers.0.self_attn.q_proj.base_layer.weight", (4, 4), seed=1) is None
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


@pytest.mark.filterwarnings("error:Found missing adapter keys")
@pytest.mark.parametrize("family", installed(("laguna",)))
def test_keys_are_those_from_which_peft_loads_an_adapter(family: str, tmp_path: Path) -> None:
    """PEFT makes `shared_experts..gate_proj` of `shared_experts.gate_proj` as it loads, and says no
    more than a warning of what is lacking then."""
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(family))
    made = add_adapters(model, LoraSpec(r=4), base_model="base")
    trained = {name: torch.randn(p.shape) for name, p in model.named_parameters() if is_adapter(name)}
    find_keys(made)
    made.peft_config["default"].save_pretrained(str(tmp_path))
    files = {saved_key(name, made): value for name, value in trained.items()}
    assert any("mlp.shared_expert." in key for key in files)
    save_file(files, tmp_path / "adapter_model.safetensors")
    base = transformers.AutoModelForCausalLM.from_config(tiny_config(family))
    found = dict(PeftModel.from_pretrained(base, str(tmp_path)).get_base_model().named_parameters())
    assert [name for name, value in trained.items() if not torch.equal(found[name], value)] == []


@pytest.mark.parametrize("family", installed(("inkling2_text",)))
def test_an_adapter_that_peft_makes_of_no_key_is_refused(family: str) -> None:
    made = add_adapters(build_on_meta(tiny_config(family), attn_implementation="eager"), LoraSpec(), base_model="base")
    with pytest.raises(
        UnsupportedError, match=r"PEFT does not load an adapter of model\S+weight_proj; leave it out of"
    ):
        find_keys(made)


def test_under_autocast_inputs_are_read_as_they_are_and_nothing_else_changes() -> None:
    """PEFT's copies of inputs in float32 are cast back before use: bit-equal without them."""
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
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return sum(t.nbytes for t in kept.values()), [logits, *gradients]

    (lean, ours), (fat, peft) = trained(casts=False), trained(casts=True)
    assert len(ours) == 1 + 2 * len(layers)
    assert all(torch.equal(one, other) for one, other in zip(ours, peft, strict=True))
    assert lean < fat


def with_adapters(config: Any, **lora: Any) -> nn.Module:
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    add_adapters(model, LoraSpec(r=4, **lora), base_model="base")
    draw = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(p.shape, generator=draw) / 8 for name, p in model.named_parameters()}
    model.load_state_dict(drawn, assign=True, strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    return model.train()


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    for _ in range(2):
        logits = model(input_ids=torch.arange(60).view(2, 30), use_cache=False).logits
        logits.square().mean().backward()
    return {"logits": logits.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_results_and_gradients_are_pefts(config: Any, recompute: Any) -> None:
    expected = trained(with_adapters(config, use_rslora=True))
    model: Any = with_adapters(config, use_rslora=True)
    join_products(model)
    apply_recompute(model.model.layers, recompute)
    found = trained(model)
    assert len(found) == 1 + 3 * 7 * 2
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_matrices_without_elements_are_adapted_as_peft_adapts_them() -> None:
    config = transformers.LlamaConfig(**{**SMALL, "intermediate_size": 0})
    expected, model = (with_adapters(config) for _ in range(2))
    join_products(model)
    for (name, tensor), found in zip(trained(expected).items(), trained(model).values(), strict=True):
        assert torch.allclose(found, tensor, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("pattern", [{"rank_pattern": {"q_proj": 2}}, {"alpha_pattern": {"up_proj": 3}}, {}])
def test_matrices_that_a_pattern_scales_otherwise_stand_alone(pattern: dict[str, Any]) -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(CONFIGS["llama"])
        lora = LoraConfig(target_modules="all-linear", init_lora_weights=False, **pattern)
        return get_peft_model(model, lora).get_base_model().train()  # pyright: ignore

    expected, model = made(), made()
    join_products(model)
    joined = [len(vars(module)["joined"]) for module in model.modules() if "joined" in vars(module)]
    assert (joined.count(1) > 3 * 2) == bool(pattern)
    for (name, tensor), found in zip(trained(expected).items(), trained(model).values(), strict=True):
        assert torch.allclose(found, tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name


def test_one_matrix_of_a_group_and_inputs_of_their_own_are_right_too() -> None:
    config = CONFIGS["llama"]
    expected, model = (with_adapters(config, target_modules=["k_proj", "v_proj"]) for _ in range(2))
    join_products(model)
    theirs: Any = expected.get_submodule("model.layers.0.self_attn")
    ours: Any = model.get_submodule("model.layers.0.self_attn")
    one, other = torch.randn(2, 3, 32), torch.randn(2, 3, 32)
    for name, x in (("k_proj", one), ("v_proj", other), ("v_proj", one)):
        assert torch.allclose(getattr(ours, name)(x), getattr(theirs, name)(x), atol=1e-5)


def test_float32_inputs_under_autocast_are_cast_as_linear_layers_cast_them() -> None:
    expected, model = (with_adapters(CONFIGS["llama"]).to(torch.bfloat16) for _ in range(2))
    join_products(model)
    found = []
    for one in (expected, model):
        x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
        layer: Any = one.get_submodule("model.layers.0.self_attn.q_proj")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = layer(x)
        result.sum().backward()
        found.append((result, x.grad))
    for theirs, ours in zip(*found, strict=True):
        assert theirs.dtype == ours.dtype
        assert torch.allclose(theirs, ours, rtol=2e-2, atol=2e-2 * float(theirs.detach().abs().max()))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize(
    ("config", "lora"),
    [*((CONFIGS["llama"], lora) for lora in ({"use_dora": True}, {"lora_dropout": 0.1})), (None, {})],
    ids=["dora", "dropout", "transposed matrices"],
)
def test_what_is_not_plain_lora_keeps_pefts_forward(config: Any, lora: dict[str, Any]) -> None:
    model = with_adapters(config or transformers.GPT2Config(**GPT2), **lora)
    join_products(model)
    assert not any("joined" in vars(module) for module in model.modules())


def compiled_products(model: Any) -> tuple[list[int], list[int], dict[str, torch.Tensor]]:
    """Matrix products of each compiled graph, matrices it copies to add to, and the results."""
    copies: list[int] = []
    counts: list[int] = []

    def count(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        nodes = graph.graph.find_nodes(op="call_function", target=torch.ops.shardwise.sum_of_products.default)
        summed = [len(node.args[0]) for node in nodes]
        called = [str(node.target) for node in graph.graph.nodes]
        counts.append(sum(name.startswith(("aten.mm", "aten.addmm")) for name in called) + sum(summed))
        adding = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default)
        copies.append(sum(node.args[0].meta["val"].dim() == 2 for node in adding))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    for block in model.model.layers:
        block.forward = torch.compile(block.forward, backend=aot_autograd(fw_compiler=count), fullgraph=True)
    return counts, copies, trained(model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_a_compiled_block_computes_the_same_with_fewer_products() -> None:
    """That blocks share graphs is tests/dist/parity/test_compiled.py's."""
    one = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1})
    theirs, _, expected = compiled_products(with_adapters(one))
    model = with_adapters(one)
    join_products(model)
    ours, copies, found = compiled_products(model)
    assert copies == [0, 0]
    assert len(ours) == len(theirs) == 2, "forward and backward"
    assert ours[0] == theirs[0] - 3 and ours[1] < theirs[1]
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("recompute", first(1, ["full", "selective"], ci=1))
def test_a_compiled_block_that_is_computed_again_adds_in_place_too(recompute: Any) -> None:
    one = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1})
    expected = trained(with_adapters(one))
    model: Any = with_adapters(one)
    join_products(model, together=False)
    apply_recompute(model.model.layers, recompute)
    _, copies, found = compiled_products(model)
    assert copies == [0, 0]
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name
