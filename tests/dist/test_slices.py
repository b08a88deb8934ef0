"""Slices of a model compute what the whole model does: loss and every gradient, family by family."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from shardwise.models.anatomy import drops_out, find_anatomy, tensor_plan
from shardwise.parallel.gradients import settle_gradients
from shardwise.parallel.tensor.slicing import Parts, apply_tensor
from shardwise.spec.support.splits import TENSOR_FAMILIES
from shardwise.train.cross_entropy import IGNORED, Targets
from shardwise.train.loss import LossModule
from shardwise.train.precision import TYPES
from tests.dist.worlds import installed, run_world

#: Odd where tensor parallelism allows it: 97 tokens go to 2 ranks as 49 and 48.
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "pad_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
}


#: Mixtures of experts are sliced, and computed, in test_mixtures.py.
DENSE = tuple(family for family in TENSOR_FAMILIES if FAMILIES[family].experts is None)


def toy(family: str, **changes: Any) -> nn.Module:
    """A random model whose norms and biases are not what they start as."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SMALL, **changes})
    model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def slice_toy(model: nn.Module, mesh: DeviceMesh) -> LossModule:
    """Slices a model, and returns what makes its loss, in chunks of 17 positions."""
    parts = find_anatomy(model)
    root = LossModule(parts, types=TYPES["fp32"], chunk=17)
    apply_tensor(
        Parts(
            plan=tensor_plan(model.config),
            embedding=parts.embedding,
            blocks=list(parts.blocks),
            norm=parts.backbone.get_submodule("norm"),
            head=parts.head,
            compares=root.head_loss is not None and root.head_loss.takes_slices,
            drops=drops_out(model),
        ),
        mesh=mesh,
    )
    return root


def train_once(model: nn.Module, root: LossModule | None = None) -> float:
    """Two micro-batches of unlike lengths, the second with positions that are not trained, added up."""
    draw = torch.Generator().manual_seed(1)
    total = 0.0
    for length in (24, 16):
        ids = torch.randint(0, 97, (3, length), generator=draw)
        labels = torch.randint(0, 97, (3 * length,), generator=draw)
        labels[: 24 - length] = IGNORED
        inputs = {"input_ids": ids, "position_ids": torch.arange(length).repeat(3, 1)}
        if root is not None:
            loss = root(**inputs, targets=Targets.of(labels, device=ids.device)) / labels.numel()
        else:
            logits = model(**inputs, use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum") / labels.numel()
        loss.backward()
        total += loss.item()
    return total


def worst_gradient(whole: nn.Module, sliced: nn.Module) -> tuple[float, str]:
    """The largest difference of a gradient, relative to itself and a hundredth of all of them, and whose it is."""
    expected = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    found = {name: p.grad for name, p in sliced.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    total = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    errors: list[tuple[float, str]] = []
    for name, gradient in expected.items():
        other = found[name]
        assert isinstance(other, DTensor)
        assert other.placements == sliced.get_parameter(name).placements, f"{name} is not settled"
        error = (other.full_tensor() - gradient).norm() / (gradient.norm() + 0.01 * total)
        errors.append((error.item(), name))
    return max(errors)


def compare_families(tp: int, families: tuple[str, ...], changes: dict[str, Any]) -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (tp,), mesh_dim_names=("tp",))
    found: dict[str, Any] = {}
    for family in families:
        whole, sliced = toy(family, **changes), toy(family, **changes)
        losses = train_once(whole), train_once(sliced, slice_toy(sliced, mesh))
        settle_gradients(sliced.parameters())
        found[family] = losses, worst_gradient(whole, sliced)
    return found


@pytest.fixture(scope="module")
def by_family() -> dict[str, Any]:
    return run_world(2, compare_families, 2, installed(DENSE), {})[0]


@pytest.mark.slow
@pytest.mark.parametrize("family", DENSE)
def test_a_family_computes_the_same_in_slices(family, by_family) -> None:
    if family not in installed([family]):
        pytest.skip(f"the installed transformers has no {family}")
    (expected, found), (error, name) = by_family[family]
    assert found == pytest.approx(expected, rel=1e-6)
    assert error <= 1e-5, name


@pytest.mark.parametrize("tied", [False, True])
def test_four_slices_with_biases_and_tied_weights(tied) -> None:
    changes = {"num_key_value_heads": 4, "tie_word_embeddings": tied, "attention_bias": True, "mlp_bias": True}
    for rank in run_world(4, compare_families, 4, ("llama",), changes):
        (expected, found), (error, name) = rank["llama"]
        assert found == pytest.approx(expected, rel=1e-6)
        assert error <= 1e-5, name
