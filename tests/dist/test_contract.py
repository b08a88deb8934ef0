"""What the tables of layouts leave out: AdamW with decay, evaluation, adapters that move, and ranks
without a row."""

from typing import Any

import pytest

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, execution, move, spread, train_cell
from tests.dist.compare import TOLERANCE, must_equal, relative
from tests.dist.test_checkpoints import DORA
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
METHODS = {"full": {"method": "full"}, "dora": {"method": "lora", "lora": DORA}}


def chosen(name: str, **options: Any) -> Execution:
    """A global batch over a layout, for pipelines in two micro-batches."""
    return spread(LAYOUTS[name], micros=2 if LAYOUTS[name].pp > 1 else 1, **options)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", first(2, LAYOUTS))
def test_adamw_with_decay_gives_the_same_losses_norms_and_weights(name, method, must_train_alike) -> None:
    """Decay acts by a tensor's shape, which windows, slices and shards change."""
    train = {**OPTIMIZERS["adamw"], "weight_decay": 0.1, "max_grad_norm": 0.5}
    must_train_alike(chosen(name), "deep tied", train=train, **METHODS[method])


@pytest.mark.parametrize("name", first(2, LAYOUTS))
def test_evaluation_between_steps_gives_the_same_and_changes_nothing(name, must_train_alike, rows) -> None:
    train, data = {"max_steps": 4, "eval_steps": 1}, {"eval_path": str(rows["eval"])}
    one, ranks = must_train_alike(chosen(name), "deep untied", data=data, train=train)
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
    job = make_job("deep tied", train={**OPTIMIZERS["sgd with momentum"], "max_steps": 10}, **METHODS["dora"])
    one, other = (chosen(name, optimizer="sgd") for name in (before, after))
    must_equal(single(job), move(job, tmp_path, one, other, at=5))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", first(1, ["fsdp x interleaved", "zero2 x zero_bubble", "zero1 x tp", "ddp x 1f1b"]))
def test_ranks_that_have_no_row_at_all_take_part(name, method, make_job, tmp_path) -> None:
    job = make_job("deep tied", train={**OPTIMIZERS["sgd"], "max_steps": 6, "global_batch_size": 1}, **METHODS[method])
    layouts = {"one": Layout(), "many": LAYOUTS[name]}
    (one,), ranks = (
        train_cell(job, tmp_path / key, execution(layout, micro_batch_size=1, optimizer="sgd"))
        for key, layout in layouts.items()
    )
    assert {len(rank.seen) for rank in ranks} == {0, 6}
    must_equal(one, ranks)
