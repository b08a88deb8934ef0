"""Joined products against PEFT's own forwards: the same results and gradients, from fewer operators."""

from typing import Any

import pytest
import torch
import transformers
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from shardwise.methods.lora import add_adapters
from shardwise.methods.lora_products import join_products
from shardwise.parallel.recompute import apply_recompute
from shardwise.spec.job.keys import LoraSpec
from tests.marks import first
from tests.unit.models.test_anatomy import GPT2, SMALL

CONFIGS = {
    "llama": transformers.LlamaConfig(**SMALL),
    "qwen2, whose matrices have biases": transformers.Qwen2Config(**SMALL, num_key_value_heads=2),
}


def adapted(config: Any, **lora: Any) -> nn.Module:
    """A float32 model whose adapters are not zero."""
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    add_adapters(model, LoraSpec(r=4, **lora), base_model="base")
    draw = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(p.shape, generator=draw) / 8 for name, p in model.named_parameters()}
    model.load_state_dict(drawn, assign=True, strict=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)
    return model.train()


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    """Logits, and the gradients of two micro-batches."""
    for _ in range(2):
        logits = model(input_ids=torch.arange(60).view(2, 30), use_cache=False).logits
        logits.square().mean().backward()
    return {"logits": logits.detach(), **{name: p.grad for name, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_results_and_gradients_are_pefts(config: Any, recompute: Any) -> None:
    expected = trained(adapted(config, use_rslora=True))
    model: Any = adapted(config, use_rslora=True)
    join_products(model)
    apply_recompute(model.model.layers, recompute)
    found = trained(model)
    assert len(found) == 1 + 3 * 7 * 2
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name


def test_one_matrix_of_a_group_and_inputs_of_their_own_are_right_too() -> None:
    config = CONFIGS["llama"]
    expected, model = (adapted(config, target_modules=["k_proj", "v_proj"]) for _ in range(2))
    join_products(model)
    theirs: Any = expected.get_submodule("model.layers.0.self_attn")
    ours: Any = model.get_submodule("model.layers.0.self_attn")
    one, other = torch.randn(2, 3, 32), torch.randn(2, 3, 32)
    for name, x in (("k_proj", one), ("v_proj", other), ("v_proj", one)):
        assert torch.allclose(getattr(ours, name)(x), getattr(theirs, name)(x), atol=1e-5)


def test_float32_inputs_under_autocast_are_cast_as_linear_layers_cast_them() -> None:
    expected, model = (adapted(CONFIGS["llama"]).to(torch.bfloat16) for _ in range(2))
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
    [
        (CONFIGS["llama"], {"use_dora": True}),
        (CONFIGS["llama"], {"lora_dropout": 0.1}),
        (transformers.GPT2Config(**GPT2), {}),
    ],
    ids=["dora", "dropout", "transposed matrices"],
)
def test_what_is_not_plain_lora_keeps_pefts_forward(config: Any, lora: dict[str, Any]) -> None:
    model = adapted(config, **lora)
    join_products(model)
    assert not any("joined" in vars(module) for module in model.modules())


def compiled_products(model: Any) -> tuple[list[int], list[int], dict[str, torch.Tensor]]:
    """Matrix products of each graph that the model's blocks are compiled into, how many of them copy a matrix to add
    to it, and what they compute."""
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
    found = trained(model)
    return counts, copies, found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_a_compiled_block_computes_the_same_with_fewer_products() -> None:
    """That blocks share graphs is tests/dist/test_compiled.py's."""
    one = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1})
    theirs, _, expected = compiled_products(adapted(one))
    model = adapted(one)
    join_products(model)
    ours, copies, found = compiled_products(model)
    assert copies == [0, 0]
    assert len(ours) == len(theirs) == 2, "forward and backward"
    assert ours[0] == theirs[0] - 3
    assert ours[1] < theirs[1]
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("recompute", first(1, ["full", "selective"], ci=1))
def test_a_compiled_block_that_is_computed_again_adds_in_place_too(recompute: Any) -> None:
    one = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 1})
    expected = trained(adapted(one))
    model: Any = adapted(one)
    join_products(model, together=False)
    apply_recompute(model.model.layers, recompute)
    _, copies, found = compiled_products(model)
    assert copies == [0, 0]
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=1e-4, atol=1e-5 * float(tensor.abs().max())), name
