"""Dropout of tensor-parallel ranks: alike for the same activations, not for slices; or disabled."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from shardwise.models.anatomy import drops_out, find_anatomy
from shardwise.parallel.gradients import settle_gradients
from shardwise.parallel.recompute import apply_recompute
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Recompute
from tests.dist.cells import OPTIMIZERS, spread, train_cell
from tests.dist.parity.test_slices import gradients, must_have_the_same, slice_toy, toy, train_once
from tests.dist.worlds import run_world

RATE = 0.25
#: Masks of a module, call by call, by its name.
Masks = dict[str, list[torch.Tensor]]


def adapted(**options: Any) -> nn.Module:
    """A toy with biases everywhere and adapters of every matrix, B not zero."""
    model = toy("llama", attention_bias=True, mlp_bias=True)
    settings: dict[str, Any] = {"target_modules": "all-linear", "lora_dropout": RATE, "task_type": "CAUSAL_LM"}
    torch.manual_seed(1)
    get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **settings, **options))
    return model.train()


def watch(model: nn.Module) -> Masks:
    """What each dropout lets pass, from now on."""
    masks: Masks = {}

    def note(name: str) -> Any:
        return lambda _module, _inputs, output: masks.setdefault(name, []).append(output.detach() != 0)

    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(note(name))
    return masks


def train_in_slices(recompute: Recompute, options: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor], Masks]:
    dist.init_process_group("gloo")
    model = adapted(**options)
    root = slice_toy(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    apply_recompute(find_anatomy(model).blocks, recompute)
    masks = watch(model)
    torch.manual_seed(7)
    loss = train_once(None, root)
    settle_gradients(model.parameters())
    return loss, gradients(model), masks


def train_with(masks: Masks, options: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """One process that drops out what it is told to."""
    model = adapted(**options)
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            calls = iter(masks[name])
            vars(module)["forward"] = lambda x, calls=calls: x * next(calls) / (1 - RATE)
    return train_once(model), gradients(model)


@pytest.mark.parametrize(
    ("recompute", "options"),
    [("none", {}), ("full", {"use_dora": True}), ("none", {"use_dora": True}), ("full", {})],
    ids=["none-lora", "full-dora", "none-dora", "full-lora"],
)
def test_ranks_together_drop_out_what_one_process_could(recompute, options) -> None:
    (loss, found, masks), (_, _, others) = run_world(2, train_in_slices, recompute, options)
    together: Masks = {}
    for name, calls in masks.items():
        pairs = list(zip(calls, others[name], strict=True))
        if recompute == "full":  # every second call is a block that is computed again
            assert all(torch.equal(*calls[at : at + 2]) for at in range(0, len(calls), 2)), name
            pairs = pairs[::2]
        alike = [torch.equal(*pair) for pair in pairs]
        assert alike == [("down_proj" not in name and "o_proj" not in name)] * 2, name
        together[name] = [a if same else torch.cat([a, b], -1) for (a, b), same in zip(pairs, alike, strict=True)]
        passed = torch.cat([mask.flatten() for mask in together[name]]).float().mean()
        assert float(passed) == pytest.approx(1 - RATE, abs=0.05)
    assert len({mask[0].sum().item() for mask in together.values()}) > len(together) // 2, "modules share masks"
    expected_loss, expected = run_world(1, train_with, together, options)[0]
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    must_have_the_same(expected, found, recompute)


def drop_in_the_models_own_code() -> tuple[bool, list[torch.Tensor]]:
    """StarCoder2 drops out embeddings, attention and residuals by functions, not by modules."""
    dist.init_process_group("gloo")
    model = toy("starcoder2", embedding_dropout=RATE, attention_dropout=RATE, residual_dropout=RATE).train()
    drops = drops_out(model)
    root = slice_toy(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    masks: list[torch.Tensor] = []
    real = F.dropout

    def noted(x: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        masks.append(real(torch.ones_like(x), *arguments, **options) != 0)
        return x * masks[-1] / (1 - RATE)

    F.dropout = noted
    torch.manual_seed(7)
    train_once(None, root)
    return drops, masks


def test_what_a_model_drops_out_of_slices_differs_and_of_whole_sequences_does_not() -> None:
    (drops, mine), (_, theirs) = run_world(2, drop_in_the_models_own_code)
    assert drops
    calls_of_a_forward = len(mine) // 2
    assert calls_of_a_forward == 1 + 3 * 4, "embedding; attention and two residuals of each block"
    for at, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert torch.equal(one, other) == (at % calls_of_a_forward == 0), at


CELLS = {
    "ddp(2)": ("gpt2", spread(Layout(dp_replicate=2), optimizer="sgd")),
    "fsdp(2)": ("gpt2", spread(Layout(dp_shard=2), optimizer="sgd", gradient_checkpointing="full")),
    "tp(2)": ("dropping", spread(Layout(tp=2), optimizer="sgd")),
    "1f1b(2)": ("dropping", spread(Layout(pp=2), micros=4, optimizer="sgd")),
}


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_a_model_whose_dropout_is_disabled_trains_as_on_one_process(cell, must_train_alike, make_job, tmp_path) -> None:
    model, chosen = CELLS[cell]
    one, _ = must_train_alike(chosen, model, train={"disable_dropout": True}, data={"eval_fraction": 0.2})
    dropping = train_cell(make_job(model, train={**OPTIMIZERS["sgd"], "max_steps": 2}), tmp_path / "drop", chosen)[0]
    assert abs(dropping.series("loss")[0] - one.series("loss")[0]) > 1e-4
