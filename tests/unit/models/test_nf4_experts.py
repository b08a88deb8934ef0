"""Stacks of experts in 4 bits: what bitsandbytes makes of each expert, whatever runs them."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.models import nf4_experts
from shardwise.models.nf4_experts import NF4Stack, quantise_experts
from tests.unit.models.test_published import NARROW

bitsandbytes = pytest.importorskip("bitsandbytes", reason="the optional extra `qlora` is not installed")


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
@pytest.mark.parametrize(
    ("kind", "keys"), [("qwen3_moe", {"num_experts": 4}), ("gpt_oss", {"num_local_experts": 4})], ids=str
)
def test_results_and_gradients_are_those_of_the_dequantised_stacks(kind, keys, implementation) -> None:
    found, expected = (model(kind, implementation, **keys) for _ in range(2))
    nf4_experts.experts_and_back(expected, dtype=torch.float32)
    quantise_experts(found, dtype=torch.float32)
    held = [module for module in found.modules() if hasattr(module, "nf4_stacks")]
    assert len(held) == 2
    assert not any(p.ndim == 3 for p in found.parameters())
    ids = torch.arange(24).view(2, 12)
    gradients: list[torch.Tensor] = []
    for one in (found, expected):
        embedded = one.get_input_embeddings()(ids).requires_grad_()  # pyright: ignore[reportCallIssue]
        logits = one(inputs_embeds=embedded).logits
        logits.square().sum().backward()
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
