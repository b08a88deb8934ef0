"""What the tables of layouts leave out: AdamW with decay, evaluation, adapters that move, and ranks without a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train.step import Step
from tests.dist.cells import (
    TOLERANCE,
    Trained,
    apart,
    execution,
    must_equal,
    prepare_cell,
    relative,
    train_cell,
    train_rank,
)
from tests.dist.test_checkpoints import DORA, interrupt, resume
from tests.dist.worlds import run_world
from tests.marks import first

ZERO1, KEPT = {"zero_stage": 1, "reshard_after_forward": False}, {"zero_stage": 2, "reshard_after_forward": False}
LAYOUTS = {
    "fsdp x interleaved": Layout(dp_shard=2, pp=2, schedule="interleaved"),
    "tp": Layout(tp=2),
    "zero1": Layout(dp_shard=2, **ZERO1),
    "zero2 x zero_bubble": Layout(dp_shard=2, pp=2, schedule="zero_bubble", **KEPT),
    "zero1 x tp": Layout(dp_shard=2, tp=2, **ZERO1),
    "ddp x 1f1b": Layout(dp_replicate=2, pp=2, schedule="1f1b"),
    "fsdp x tp x gpipe": Layout(dp_shard=2, tp=2, pp=2, schedule="gpipe"),
}
DORA_METHOD = {"method": "lora", "lora": DORA}


def chosen(layout: Layout, *, rows: int = 8, **options: Any) -> Execution:
    """A global batch over a layout; pipelines get it as two micro-batches."""
    micros = 2 if layout.pp > 1 else 1
    size = max(1, rows // layout.data_world_size // micros)
    return execution(layout, micro_batch_size=size, gradient_accumulation_steps=micros, **options)


@pytest.mark.parametrize("method", [{"method": "full"}, DORA_METHOD], ids=["full", "dora"])
@pytest.mark.parametrize("name", first(2, LAYOUTS))
def test_adamw_with_decay_gives_the_same_losses_norms_and_weights(
    name: str, method: dict[str, Any], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Decay acts by a tensor's shape, which windows, slices and shards change."""
    job = make_job("deep tied", train={"weight_decay": 0.1, "max_grad_norm": 0.5}, **method)
    one = train_cell(job, tmp_path / "one", execution())[0]
    must_equal(one, train_cell(job, tmp_path / "many", chosen(LAYOUTS[name])))


@pytest.mark.parametrize("name", first(2, LAYOUTS))
def test_evaluation_between_steps_gives_the_same_and_changes_nothing(
    name: str, make_job: Callable[..., Job], rows: dict[str, Path], tmp_path: Path
) -> None:
    train = {"max_steps": 4, "eval_steps": 1, "optimizer": "sgd", "learning_rate": 0.05}
    job = make_job("deep untied", data={"eval_path": str(rows["eval"])}, train=train)
    one = train_cell(job, tmp_path / "one", execution(optimizer="sgd"))[0]
    ranks = train_cell(job, tmp_path / "many", chosen(LAYOUTS[name], optimizer="sgd"))
    must_equal(one, ranks)
    assert len(one.series("eval_loss")) == 4
    assert relative(one.series("eval_loss"), ranks[0].series("eval_loss")) <= TOLERANCE


MOVES = [
    ("fsdp x interleaved", "zero1 x tp"),
    ("zero1 x tp", "fsdp x interleaved"),
    ("tp", "zero2 x zero_bubble"),
    ("ddp x 1f1b", "tp"),
]


@pytest.mark.parametrize(("before", "after"), first(1, MOVES))
def test_adapters_copies_and_momentum_move_to_another_layout(
    before: str, after: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    train = {"max_steps": 10, "optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    job = make_job("deep tied", train=train, **DORA_METHOD)
    one = train_cell(job, tmp_path / "one", execution(optimizer="sgd"))[0]
    run = prepare_cell(job, tmp_path / "moved")
    interrupt(run, chosen(LAYOUTS[before], optimizer="sgd"), after=5)
    ended = run_world(LAYOUTS[after].world_size, resume, run, chosen(LAYOUTS[after], optimizer="sgd"))
    assert {start for start, _ in ended} == {5}
    must_equal(one, [rank for _, rank in ended])


@pytest.mark.parametrize("method", [{"method": "full"}, DORA_METHOD], ids=["full", "dora"])
@pytest.mark.parametrize("name", first(1, ["fsdp x interleaved", "zero2 x zero_bubble", "zero1 x tp", "ddp x 1f1b"]))
def test_ranks_that_have_no_row_at_all_take_part(
    name: str, method: dict[str, Any], make_job: Callable[..., Job], tmp_path: Path
) -> None:
    train = {"max_steps": 6, "optimizer": "sgd", "learning_rate": 0.05, "global_batch_size": 1}
    job = make_job("deep tied", train=train, **method)
    one = train_cell(job, tmp_path / "one", execution(micro_batch_size=1, optimizer="sgd"))[0]
    layout = LAYOUTS[name]
    ranks = train_cell(job, tmp_path / "many", execution(layout, micro_batch_size=1, optimizer="sgd"))
    assert {len(rank.seen) for rank in ranks} == {0, 6}
    must_equal(one, ranks)


def _with_a_fault(run: RunDirectory, layout: Execution) -> Trained:
    """One hundredth more of the gradient of some adapters, in every step."""
    real = Step.__call__

    def wrong(self: Step, batch: Any) -> Any:
        loss = real(self, batch)
        for module in self.spread.modules:
            for name, parameter in module.named_parameters():
                if "q_proj.lora_B" in name and parameter.grad is not None:
                    parameter.grad.mul_(1.01)
        return loss

    Step.__call__ = wrong
    return train_rank(run, layout)


def test_a_fault_in_adapters_that_are_next_to_nothing_does_not_pass(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    """The measure of these tests, measured: losses and norms hardly show it."""
    job = make_job("deep tied", method="lora", train={"optimizer": "sgd", "learning_rate": 0.05})
    one = train_cell(job, tmp_path / "one", execution(optimizer="sgd"))[0]
    run = prepare_cell(job, tmp_path / "faulty")
    ddp = execution(Layout(dp_replicate=2), micro_batch_size=4, optimizer="sgd")
    ranks = run_world(2, _with_a_fault, run, ddp)
    assert relative(one.series("loss"), ranks[0].series("loss")) <= TOLERANCE
    worst = max(apart(one.weights[name], weight) for name, weight in ranks[0].weights.items())
    assert worst == pytest.approx(0.01, rel=0.2)
    with pytest.raises(AssertionError, match="lora_B"):
        must_equal(one, ranks)
