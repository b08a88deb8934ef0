"""Types are read back from live tensors, and one that was not asked for stops the run."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.tensor import DTensor

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from shardwise.train import model as model_module
from shardwise.train.build import Build
from shardwise.train.guards.checks import GuardError
from tests.dist.cells import LAYOUTS, ZERO2, composed, prepare_cell, run_built, spread
from tests.dist.worlds import run_world, said_by


def _facts(built: Build) -> tuple[dict[str, str], dict[str, str | None]]:
    before = built.types.start_line(built.types.read_back())
    built.step(next(iter(built.batches.from_(0))))
    built.optimizer.step()
    built.optimizer.zero_grad()
    return before, built.types.read_back()


@pytest.mark.parametrize(
    ("precision", "trained", "frozen"),
    [("mixed", "float32", "bfloat16"), ("bf16", "bfloat16", "bfloat16"), ("fp32", "float32", "float32")],
)
@pytest.mark.parametrize("layout", ["ddp", "fsdp", "zero1"])
def test_what_is_told_first_is_what_lives_after_a_step(layout, precision, trained, frozen, make_job, tmp_path) -> None:
    chosen = spread(LAYOUTS[layout], precision=precision)
    for before, after in run_built(_facts, prepare_cell(make_job(method="lora"), tmp_path), chosen):
        assert after == dict.fromkeys(("weights", "masters", "gradients", "optimizer"), trained) | {"frozen": frozen}
        for name in ("gradients", "optimizer"):
            assert before[name] == f"{trained} (as asked; read back in the first step)"
        assert [before[name] for name in ("weights", "masters", "frozen")] == [trained, trained, frozen]
        assert before["compute"].endswith(" (as configured)")
        assert before["reduction"].endswith(" (as configured)")


def _sums_over_tp(built: Build) -> tuple[str, set[str]]:
    """How the reduction is told, and the types in which a step adds gradients over `tp`."""
    original, found = DTensor.redistribute, set[str]()

    def redistribute(gradient: DTensor, *args: Any, **options: Any) -> DTensor:
        if gradient.ndim < 3 and any(p.is_partial() for p in gradient.placements):  # activations have three dims
            found.add(str(gradient.dtype).removeprefix("torch."))
        return original(gradient, *args, **options)

    with patch.object(DTensor, "redistribute", redistribute):
        built.step(next(iter(built.batches.from_(0))))
    return built.types.as_configured()["reduction"], found


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("precision", ["mixed", "fp32"])
def test_in_which_type_tensor_parallel_ranks_add_gradients_is_told(precision, waits, make_job, tmp_path) -> None:
    """FSDP2 casts to float32 behind the sum over `tp`, but where reductions wait."""
    layout = Layout(dp_shard=2, tp=2, pp=2, schedule="zero_bubble", **ZERO2) if waits else Layout(dp_shard=2, tp=2)
    chosen = spread(layout, micros=2, precision=precision)
    short = precision == "mixed" and not waits
    for told, found in run_built(_sums_over_tp, prepare_cell(make_job(), tmp_path), chosen):
        assert told == ("float32, over tp bfloat16" if short else "float32")
        assert found == {"bfloat16" if short else "float32"}


def _stored_otherwise(run: RunDirectory, chosen: Execution, stored: torch.dtype) -> str:
    """All storage is cast to one type, and not to those of the precision."""
    cast = model_module._set_types
    model_module._set_types = lambda model, types: cast(model, replace(types, trainable=stored, frozen=stored))
    return said_by(GuardError, composed, run, chosen)


@pytest.mark.parametrize(
    ("stored", "which", "sentence"),
    [
        (torch.bfloat16, "trained", "is stored in bfloat16; train.precision mixed stores it in float32"),
        (torch.float32, "frozen", "is stored in float32; train.precision mixed stores it in bfloat16"),
    ],
)
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_weights_of_other_types_than_asked_stop_the_run(layout, stored, which, sentence, make_job, tmp_path) -> None:
    run = prepare_cell(make_job(method="lora"), tmp_path)
    for said in run_world(2, _stored_otherwise, run, spread(LAYOUTS[layout], precision="mixed"), stored):
        assert said.startswith(f"the {which} weight ")
        assert sentence in said


def _states_otherwise(built: Build) -> str:
    """The optimizer's states come out in half the bits."""
    parameter, states = built.checkpoints.stepped.named[0][1], built.optimizer.state

    def halve(*_: object) -> None:
        states[parameter]["exp_avg"] = states[parameter]["exp_avg"].bfloat16()

    key = built.optimizer.register_step_post_hook(halve).id
    built.optimizer._optimizer_step_post_hooks.move_to_end(key, last=False)
    built.step(next(iter(built.batches.from_(0))))
    return said_by(GuardError, built.optimizer.step)


def test_optimizer_states_of_another_type_than_asked_stop_the_run(make_job, tmp_path) -> None:
    chosen = spread(LAYOUTS["fsdp"], optimizer="adamw_foreach")
    for said in run_built(_states_otherwise, prepare_cell(make_job(), tmp_path), chosen):
        assert said.startswith("the optimizer's exp_avg of ")
        assert "is stored in bfloat16; train.precision fp32 stores it in float32" in said
