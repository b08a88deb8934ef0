"""What the tables of layouts leave out: AdamW with decay, evaluation, adapters that move, and ranks without a row."""

from typing import Any

import pytest

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.dist.cells import TOLERANCE, ZERO1, ZERO2, execution, must_equal, prepare_cell, relative, spread, train_cell
from tests.dist.test_checkpoints import DORA, interrupt, resume
from tests.dist.worlds import run_world
from tests.marks import first

LAYOUTS = {
    "zero1": Layout(dp_shard=2, **ZERO1),
    "tp": Layout(tp=2),
    "fsdp x interleaved": Layout(dp_shard=2, pp=2, schedule="interleaved"),
    "zero2 x zero_bubble": Layout(dp_shard=2, pp=2, schedule="zero_bubble", **ZERO2),
    "zero1 x tp": Layout(dp_shard=2, tp=2, **ZERO1),
    "ddp x 1f1b": Layout(dp_replicate=2, pp=2, schedule="1f1b"),
    "fsdp x tp x gpipe": Layout(dp_shard=2, tp=2, pp=2, schedule="gpipe"),
}
DORA_METHOD = {"method": "lora", "lora": DORA}


def chosen(name: str, **options: Any) -> Execution:
    """A global batch over a layout, for pipelines in two micro-batches."""
    return spread(LAYOUTS[name], micros=2 if LAYOUTS[name].pp > 1 else 1, **options)


@pytest.mark.parametrize("method", [{"method": "full"}, DORA_METHOD], ids=["full", "dora"])
@pytest.mark.parametrize("name", first(2, LAYOUTS))
def test_adamw_with_decay_gives_the_same_losses_norms_and_weights(name, method, single, make_job, tmp_path) -> None:
    """Decay acts by a tensor's shape, which windows, slices and shards change."""
    job = make_job("deep tied", train={"weight_decay": 0.1, "max_grad_norm": 0.5}, **method)
    must_equal(single(job), train_cell(job, tmp_path / "many", chosen(name)))


@pytest.mark.parametrize("name", first(2, LAYOUTS))
def test_evaluation_between_steps_gives_the_same_and_changes_nothing(name, single, make_job, rows, tmp_path) -> None:
    train = {"max_steps": 4, "eval_steps": 1, "optimizer": "sgd", "learning_rate": 0.05}
    job = make_job("deep untied", data={"eval_path": str(rows["eval"])}, train=train)
    one = single(job)
    ranks = train_cell(job, tmp_path / "many", chosen(name, optimizer="sgd"))
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
def test_adapters_copies_and_momentum_move_to_another_layout(before, after, single, make_job, tmp_path) -> None:
    train = {"max_steps": 10, "optimizer": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    job = make_job("deep tied", train=train, **DORA_METHOD)
    one = single(job)
    run = prepare_cell(job, tmp_path / "moved")
    interrupt(run, chosen(before, optimizer="sgd"), after=5)
    ended = run_world(LAYOUTS[after].world_size, resume, run, chosen(after, optimizer="sgd"))
    assert {start for start, _ in ended} == {5}
    must_equal(one, [rank for _, rank in ended])


@pytest.mark.parametrize("method", [{"method": "full"}, DORA_METHOD], ids=["full", "dora"])
@pytest.mark.parametrize("name", first(1, ["fsdp x interleaved", "zero2 x zero_bubble", "zero1 x tp", "ddp x 1f1b"]))
def test_ranks_that_have_no_row_at_all_take_part(name, method, single, make_job, tmp_path) -> None:
    train = {"max_steps": 6, "optimizer": "sgd", "learning_rate": 0.05, "global_batch_size": 1}
    job = make_job("deep tied", train=train, **method)
    one = train_cell(job, tmp_path / "one", execution(micro_batch_size=1, optimizer="sgd"))[0]
    layout = LAYOUTS[name]
    ranks = train_cell(job, tmp_path / "many", execution(layout, micro_batch_size=1, optimizer="sgd"))
    assert {len(rank.seen) for rank in ranks} == {0, 6}
    must_equal(one, ranks)
