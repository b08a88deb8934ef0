"""4-bit layers and stacks of experts: what bitsandbytes makes of a matrix, whole and in slices."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.errors import UnsupportedError
from shardwise.models import nf4, nf4_experts
from shardwise.models.nf4 import NF4Linear, quantise_linear_layers
from shardwise.models.nf4_experts import NF4Stack, quantise_experts
from tests.unit.models.test_published import NARROW

bitsandbytes = pytest.importorskip("bitsandbytes", reason="the optional extra `qlora` is not installed")


def layer(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> NF4Linear:
    with torch.device("meta"):
        return NF4Linear(nn.Linear(columns, rows, bias=False), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(128, 256), (96, 320), (48, 32)], ids=str)
def test_a_matrix_is_quantised_bit_for_bit_as_bitsandbytes_does(shape, dtype, monkeypatch) -> None:
    monkeypatch.setattr(nf4, "_AT_ONCE", 4096)
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    packed, state = bitsandbytes.functional.quantize_4bit(matrix, compress_statistics=True, quant_type="nf4")
    made = layer(*shape, dtype=dtype)
    weight, scales = made.quantise(matrix)
    assert weight.flatten().equal(packed.flatten())
    assert made.dequantised(weight, scales).equal(bitsandbytes.functional.dequantize_4bit(packed, state))
    assert float((made.dequantised(weight, scales) - matrix).abs().mean()) < 0.3


@pytest.mark.parametrize("dim", [0, 1])
def test_slices_are_those_of_one_quantisation(dim: int) -> None:
    matrix, whole = torch.randn(192, 384), layer(192, 384)
    weight, scales = whole.quantise(matrix)
    for index in range(3):
        one = layer(192, 384)
        one.quantise(matrix)
        one.take_slice(dim, index=index, degree=3)
        part = one.dequantised(weight.chunk(3, dim)[index], scales.chunk(3, dim)[index])
        assert part.equal(whole.dequantised(weight, scales).chunk(3, dim)[index])


def test_the_gradient_of_the_input_is_that_of_the_dequantised_matrix() -> None:
    made, x = layer(64, 128), torch.randn(5, 128, requires_grad=True)
    made.weight, made.scales = (nn.Parameter(part, requires_grad=False) for part in made.quantise(torch.randn(64, 128)))
    gradient = torch.randn(5, 64)
    made(x).backward(gradient)
    assert torch.allclose(x.grad, gradient @ made.dequantised(made.weight, made.scales))


def test_a_slice_never_cuts_a_block() -> None:
    for shape, dim in (((128, 192), 1), ((128, 32), 0)):
        with pytest.raises(UnsupportedError, match="tp = 2 would cut blocks of 64 quantised elements of a matrix of"):
            layer(*shape).take_slice(dim, index=0, degree=2)


class Model(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        self.config = SimpleNamespace()
        self.head = nn.Linear(64, 9)
        for name, part in parts.items():
            setattr(self, name, part)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize(
    ("parts", "trained", "message"),
    [
        ({}, False, "the model has no linear layer that qlora could quantise; use method: lora"),
        ({"up": nn.Linear(64, 64)}, True, r"cannot quantise up, a matrix of \(64, 64\): it is trained as a copy"),
        ({"up": nn.Linear(9, 9)}, False, r"cannot quantise up, a matrix of \(9, 9\): it has no whole blocks of 64;"),
    ],
)
def test_what_cannot_be_quantised_is_refused(parts: dict[str, nn.Module], trained: bool, message: str) -> None:
    model = Model(**parts)
    model.requires_grad_(trained)
    with pytest.raises(UnsupportedError, match=message):
        quantise_linear_layers(model, dtype=torch.float32)


def test_all_is_quantised_but_the_head() -> None:
    model = Model(up=nn.Linear(64, 64), down=nn.Linear(128, 64)).requires_grad_(False)
    quantise_linear_layers(model, dtype=torch.float32)
    assert [name for name, module in model.named_modules() if isinstance(module, NF4Linear)] == ["up", "down"]


def stack(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> NF4Stack:
    return NF4Stack(name="down_proj", shape=(rows, columns), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(128, 256), (96, 40), (192, 129)], ids=str)
def test_each_expert_is_quantised_as_bitsandbytes_does_a_matrix(shape, dtype, monkeypatch) -> None:
    """Also where the stack is written out by parts, and where a scale begins between float32s."""
    monkeypatch.setattr(nf4_experts, "_AT_ONCE", 2 * shape[0] * shape[1])
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    one = stack(*shape, dtype=dtype)
    elements, scales = one.quantise([*matrices])
    made = one.written_out(elements, scales)
    options = {"blocksize": 64, "compress_statistics": True, "quant_type": "nf4"}
    for index, matrix in enumerate(matrices):
        packed, state = bitsandbytes.functional.quantize_4bit(matrix, **options)
        assert elements[index].equal(packed.flatten())
        assert made[index].equal(bitsandbytes.functional.dequantize_4bit(packed, state))
        assert one.written_out(elements[index : index + 1], scales[index : index + 1])[0].equal(made[index])


def model(kind: str, implementation: str, **keys: Any) -> nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**NARROW, "moe_intermediate_size": 32, **keys})
    built = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    built.set_experts_implementation(implementation)
    return built.requires_grad_(False)


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize(("kind", "key"), [("qwen3_moe", "num_experts"), ("gpt_oss", "num_local_experts")])
def test_results_and_gradients_are_those_of_the_dequantised_stacks(kind, key, implementation) -> None:
    found, expected = (model(kind, implementation, **{key: 4}) for _ in range(2))
    nf4_experts.experts_and_back(expected, dtype=torch.float32)
    quantise_experts(found, dtype=torch.float32)
    assert len([module for module in found.modules() if hasattr(module, "nf4_stacks")]) == 2
    assert not any(p.ndim == 3 for p in found.parameters())
    ids = torch.arange(24).view(2, 12)
    gradients: list[torch.Tensor] = []
    for one in (found, expected):
        embedded = one.get_input_embeddings()(ids).requires_grad_()  # pyright: ignore[reportCallIssue]
        one(inputs_embeds=embedded).logits.square().sum().backward()
        gradients.append(embedded.grad)
    assert torch.equal(*gradients)
    assert not any(p.ndim == 3 for p in found.parameters()), "what is written out goes with the forward"


def test_hooks_around_still_see_what_is_no_stack() -> None:
    seen: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.numel())
        return tensor * 1

    found = model("qwen3_moe", "grouped_mm", num_experts=4)
    quantise_experts(found, dtype=torch.float32)
    embedded = torch.randn(1, 12, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found(inputs_embeds=embedded).logits.sum().backward()
    assert embedded.grad is not None
    assert seen and max(seen) < 4 * 64 * 64, "a stack of gates and ups was kept"
    assert 24 * 64 in seen, "products of experts go to the hooks around"
