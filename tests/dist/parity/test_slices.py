"""Slices and stages of a model compute what the whole does: loss and gradients, by family."""

from collections.abc import Iterable
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
from shardwise.models.load import fill_from_memory
from shardwise.models.stage import StagePlace, final_norm, keep_stage, planned_ends
from shardwise.parallel.gradients import settle_gradients
from shardwise.parallel.tensor.slicing import Parts, apply_tensor
from shardwise.spec.support.splits import PLANNED_STAGES, TENSOR_FAMILIES
from shardwise.train.cross_entropy import IGNORED, Targets
from shardwise.train.loss import LossModule
from shardwise.train.precision import TYPES
from shardwise.train.saving.export import gathered
from tests.dist.worlds import SMALL, installed, run_world

#: Odd where tensor parallelism allows it: 97 tokens go to 2 ranks as 49 and 48.
TOY = SMALL | {"vocab_size": 97, "num_hidden_layers": 4, "head_dim": 8, "rotary_dim": 4, "sliding_window": 8}
TOY |= {"pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "attention_dropout": 0.0, "residual_dropout": 0.0}

#: Mixtures, and configurations that want more than this toy says, are in test_families.py.
DENSE = installed([family for family in TENSOR_FAMILIES if FAMILIES[family].experts is None])
STAGED = installed([one for one in PLANNED_STAGES if one not in ("deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss")])

#: Blocks of the three stages of four: one in the middle that has neither end.
SPANS = (range(1), range(1, 3), range(3, 4))
#: What a backbone does to embeddings, where it would do nothing by default.
SCALED: dict[str, dict[str, Any]] = {"granite": {"embedding_multiplier": 3.0}}


def toy(family: str, **changes: Any) -> nn.Module:
    """A random model whose norms and biases are not what they start as."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**TOY, **changes})
    model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def slice_toy(model: nn.Module, mesh: DeviceMesh) -> LossModule:
    """Slices a model, and returns what makes its loss, in chunks of 17 positions."""
    parts = find_anatomy(model)
    root = LossModule(parts, types=TYPES["fp32"], chunk=17)
    cut: dict[str, Any] = {"embedding": parts.embedding, "blocks": list(parts.blocks), "head": parts.head}
    cut |= {"norm": final_norm(parts, width=32), "plan": tensor_plan(model.config)}
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    compares = root.head_loss is not None and root.head_loss.takes_slices
    apply_tensor(Parts(**cut, compares=compares, drops=drops_out(model)), mesh=mesh)
    fill_from_memory(model, value=values.__getitem__, device=torch.device("cpu"))
    return root


def stage_of(family: str, index: int, **changes: Any) -> LossModule:
    """The same random model, cut to a stage."""
    place = StagePlace(index=index, count=len(SPANS), blocks=SPANS[index])
    anatomy = find_anatomy(toy(family, **SCALED.get(family, {}), **changes))
    keep_stage(anatomy, place, planned_ends(anatomy))
    return LossModule(anatomy, types=TYPES["fp32"], chunk=16, first_block=place.blocks.start, makes_loss=place.is_last)


def train_once(model: nn.Module | None, *roots: LossModule) -> float:
    """Two micro-batches, one of two documents, partly trained; by a model, or by its parts."""
    draw = torch.Generator().manual_seed(1)
    total = 0.0
    for length, second in ((24, 24), (16, 10)):
        ids = torch.randint(3, 97, (3, length), generator=draw)
        labels = torch.randint(3, 97, (3 * length,), generator=draw)
        labels[: 24 - length] = IGNORED
        positions = torch.cat([torch.arange(second), torch.arange(length - second)]).repeat(3, 1)
        hidden = None
        for root in roots:
            given = {"input_ids": ids} if hidden is None else {"hidden": hidden}
            hidden = root(**given, position_ids=positions, targets=Targets.of(labels, device=ids.device))
        if hidden is None:
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
            hidden = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
        loss = hidden / labels.numel()
        loss.backward()
        total += loss.item()
    return total


def gradients(*modules: nn.Module) -> dict[str, torch.Tensor]:
    """Whole ones by name; the two copies of a tied weight are added."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in (named for module in modules for named in module.named_parameters()):
        if (gradient := parameter.grad) is not None:
            if isinstance(gradient, DTensor):
                assert gradient.placements == parameter.placements, f"{name} is not settled"
                vars(gradient).update(parts_of_rows=vars(parameter).get("parts_of_rows"))
                gradient = gathered(gradient)
            found[name] = found.get(name, torch.zeros(())) + gradient
    return found


def must_have_the_same(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], what: str) -> None:
    """Gradients, relative to themselves and a hundredth of all of them."""
    assert found.keys() == expected.keys(), what
    total = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    errors = {name: (found[name] - g).norm() / (g.norm() + 0.01 * total) for name, g in expected.items()}
    assert {name: error.item() for name, error in errors.items() if error > 1e-5} == {}, what


def compare_slices(tp: int, families: Iterable[str], changes: dict[str, Any]) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (tp,), mesh_dim_names=("tp",))
    for family in families:
        whole, sliced = toy(family, **changes), toy(family, **changes)
        assert train_once(None, slice_toy(sliced, mesh)) == pytest.approx(train_once(whole), rel=1e-6), family
        settle_gradients(sliced.parameters())
        must_have_the_same(gradients(whole), gradients(sliced), family)


@pytest.mark.slow
def test_every_family_computes_the_same_in_slices() -> None:
    run_world(2, compare_slices, 2, DENSE, {"use_qk_norm": True})


@pytest.mark.parametrize("tied", [False, True])
def test_four_slices_with_biases_and_tied_weights(tied) -> None:
    changes = {"num_key_value_heads": 4, "tie_word_embeddings": tied, "attention_bias": True, "mlp_bias": True}
    run_world(4, compare_slices, 4, ("llama",), changes)


def compare_stages(changes: dict[str, Any]) -> None:
    for family in STAGED:
        whole = toy(family, **SCALED.get(family, {}), **changes)
        stages = [stage_of(family, index, **changes) for index in range(len(SPANS))]
        assert train_once(None, *stages) == pytest.approx(train_once(whole), rel=1e-6), family
        named = {name.removeprefix("model."): gradient for name, gradient in gradients(*stages).items()}
        must_have_the_same(gradients(whole), named, family)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_every_family_computes_the_same_in_stages(tied) -> None:
    run_world(1, compare_stages, {"tie_word_embeddings": tied})


def drop_behind_the_first() -> bool:
    """Whether a stage in the middle gives in training what it gives in evaluation."""
    root = stage_of("starcoder2", 1, embedding_dropout=0.5)
    hidden, positions = torch.randn(2, 8, 32), torch.arange(8).repeat(2, 1)
    ways = [root.train(training)(hidden=hidden, position_ids=positions) for training in (True, False)]
    return torch.equal(*ways)


def test_only_the_first_stage_drops_embeddings_out() -> None:
    assert run_world(1, drop_behind_the_first) == [True]
