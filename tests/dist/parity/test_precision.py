"""Adafactor, AdamW in 8 bits and float16: the same under every layout as on one process."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from shardwise.parallel.optimizer.adafactor import Adafactor
from shardwise.spec.layout.axes import Layout
from shardwise.train.build import Build
from shardwise.train.guards.checks import GuardError
from tests.dist.cells import LAYOUTS, ZERO1, move, outcome, prepare_cell, run_built, spread, train_cell, train_on
from tests.dist.compare import must_be_the_same, relative
from tests.dist.memory.test_memory import must_be_forecast
from tests.dist.worlds import said_by

CELLS = {
    "ddp": spread(Layout(dp_replicate=2)),
    "fsdp, uneven": spread(Layout(dp_shard=3), micros=2),
    "zero1, uneven": spread(Layout(dp_shard=3, **ZERO1), micros=2),
    "1f1b": spread(Layout(pp=2), micros=2),
    **{name: spread(LAYOUTS[name]) for name in ("tp", "fsdp x tp", "zero1 x tp")},
}
UNSLICED = [name for name in CELLS if "tp" not in name]
ADAFACTOR = {"optimizer": "adafactor", "learning_rate": 0.01, "max_steps": 10}
ADAMW_8BIT = {"optimizer": "adamw_8bit", "learning_rate": 5e-4, "max_steps": 5}


def test_adafactor_steps_as_that_of_torch() -> None:
    torch.manual_seed(0)
    theirs = [torch.nn.Parameter(torch.randn(shape)) for shape in ((48, 32), (48,), (3, 16, 8))]
    ours = [torch.nn.Parameter(p.detach().clone()) for p in theirs]
    reference = torch.optim.Adafactor(theirs, lr=0.01, weight_decay=0.1)
    optimizer = Adafactor([{"params": ours, "weight_decay": 0.1}], lr=0.01, placed={p: p for p in ours})
    for _ in range(10):
        for one, other in zip(theirs, ours, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        reference.step()
        optimizer.step()
    for one, other in zip(theirs, ours, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_adafactor_trains_as_on_one_process(method, cell, must_train_alike) -> None:
    must_train_alike(CELLS[cell], method=method, train=ADAFACTOR)


@pytest.mark.parametrize(
    ("optimizer", "model", "cell"),
    [
        *[("adafactor", "untied", cell) for cell in CELLS],
        *[("adamw_8bit", "of whole blocks", cell) for cell in UNSLICED],
        ("adamw_8bit", "untied", "fsdp, uneven"),
    ],
)
def test_states_are_what_was_forecast(optimizer, model, cell, make_job, tmp_path) -> None:
    job = make_job(model, train={"optimizer": optimizer})
    must_be_forecast(job, replace(CELLS[cell], optimizer=optimizer), tmp_path)


#: Where a gradient's last bit differs, one level of 8 bits moves a weight by a share of a step.
QUANTISED = 1e-4


@pytest.mark.parametrize("cell", UNSLICED)
def test_adamw_in_8_bits_trains_as_on_one_process(cell, single, make_job, tmp_path) -> None:
    job = make_job("of whole blocks", train=ADAMW_8BIT)
    found = train_cell(job, tmp_path / "cell", replace(CELLS[cell], optimizer="adamw_8bit"))[0]
    for key in ("loss", "grad_norm"):
        assert relative(single(job).series(key), found.series(key)) <= QUANTISED, key


@pytest.mark.parametrize(
    ("before", "after"), [("fsdp, uneven", "ddp"), ("zero1, uneven", "fsdp, uneven"), ("1f1b", "fsdp, uneven")]
)
@pytest.mark.parametrize("train", [ADAFACTOR, ADAMW_8BIT], ids=["adafactor", "adamw_8bit"])
def test_states_move_to_another_layout(train, before, after, single, make_job, tmp_path) -> None:
    job = make_job("of whole blocks", train={**train, "max_steps": 5})
    first, then = (replace(CELLS[name], optimizer=train["optimizer"]) for name in (before, after))
    resumed = move(job, tmp_path / "moved", first, then, at=3)[0]
    assert relative(single(job).series("loss"), resumed.series("loss")) <= QUANTISED


SCALED = {name: replace(one, precision="fp16") for name, one in CELLS.items()}
SCALED["offload"] = spread(Layout(dp_shard=2), offload="optimizer", precision="fp16")
SCALED |= {name: spread(LAYOUTS[name], precision="fp16") for name in ("zero2", "hsdp", "cp")}
SCALED |= {name: spread(LAYOUTS[name], micros=2, precision="fp16") for name in ("mp", "zero_bubble")}

#: So large that the first steps overflow float16, by a power of two that each halves.
HUGE = 2.0**40


def _scaled(built: Build, scale: float) -> tuple[Any, float]:
    built.step.scale.value = scale
    train_on(built)
    return outcome(built), built.step.scale.value


#: Products are rounded to float16, 2^-11 each, at another place under each layout.
HALF = 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("cell", SCALED)
def test_float16_skips_the_same_steps_on_every_rank(cell, make_job, tmp_path) -> None:
    job = make_job("untied", train={"max_steps": 40, "learning_rate": 5e-4})
    one, chosen = spread(precision="fp16"), SCALED[cell]
    ((_, left),) = run_built(_scaled, prepare_cell(job, tmp_path / "one"), one, HUGE)
    ranks = run_built(_scaled, prepare_cell(job, tmp_path / "cell"), chosen, HUGE)
    skipped = [norm is None for norm in ranks[0][0].series("grad_norm")]
    assert 5 < sum(skipped) < 35
    assert ranks[0][0].series("skipped_step") == skipped
    assert ranks[0][0].series("loss_scale") == [HUGE / 2 ** sum(skipped[:step]) for step in range(40)]
    assert not any(skipped[-5:]), "the scale has become small enough"
    # A rank's part of a gradient overflows at twice the scale that the sum of two does.
    assert {scale for _, scale in ranks} == {HUGE / 2 ** sum(skipped)}
    assert left <= ranks[0][1] <= 4 * left


@pytest.mark.parametrize("cell", SCALED)
def test_float16_trains_as_on_one_process(cell, make_job, tmp_path) -> None:
    job = make_job("untied", train={"learning_rate": 5e-4})
    expected = train_cell(job, tmp_path / "one", spread(precision="fp16"))[0]
    found = train_cell(job, tmp_path / "cell", SCALED[cell])[0]
    assert relative(expected.series("loss"), found.series("loss")) <= HALF
    assert relative(expected.series("grad_norm"), found.series("grad_norm")) <= 10 * HALF


@pytest.mark.slow
def test_the_scale_goes_on_from_a_checkpoint_bit_for_bit(make_job, tmp_path) -> None:
    job, chosen = make_job(train={"max_steps": 6}), replace(CELLS["fsdp, uneven"], precision="fp16")
    must_be_the_same(train_cell(job, tmp_path / "whole", chosen), move(job, tmp_path / "moved", chosen, chosen, at=3))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(dp_shard=2, tp=2), Layout(tp=2)])
@pytest.mark.parametrize(
    ("rate", "asked"),
    [(5e-4, {}), (5e-3, {"method": "lora", "lora": {"r": 4, "use_dora": True}})],
    ids=["full", "dora"],
)
def test_adamw_and_mixed_precision_stay_near_under_tp(rate, asked, layout, make_job, tmp_path) -> None:
    """Sums over slices round otherwise: this is no proof, but shows that nothing is left out."""
    losses: list[list[float]] = []
    for one in (Layout(), layout):
        chosen = spread(one, precision="mixed")
        job = make_job("tied", train={"precision": "mixed", "learning_rate": rate, "max_steps": 10}, **asked)
        losses.append(train_cell(job, tmp_path / str(one.world_size), chosen)[0].series("loss"))
    assert relative(losses[0], losses[1]) < 5e-3
    assert losses[0][-1] < losses[0][0] - 0.1


def _overflows_always(built: Build) -> str:
    built.step.scale.value = 1.0
    with torch.no_grad():
        for _, weight in built.model.parameters:
            weight.register_hook(lambda gradient: gradient * float("inf"))
    return said_by(GuardError, train_on, built)


def test_a_run_in_which_every_scale_overflows_ends_with_a_sentence(make_job, tmp_path) -> None:
    chosen = spread(precision="fp16")
    (said,) = run_built(_overflows_always, prepare_cell(make_job(train={"max_steps": 3}), tmp_path), chosen)
    assert said == (
        "step 1: gradients overflow float16 at every scale of the loss down to 1, and all steps since were skipped; "
        "use train.precision: mixed or fp32, or look at the model"
    )
