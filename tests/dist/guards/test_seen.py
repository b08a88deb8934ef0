"""What ranks see is the global batch: rows that come again, or as others, stop the run."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from shardwise.data.micro_batches import Batches, GlobalBatch
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import read_metrics
from shardwise.train.build import Build
from shardwise.train.guards.checks import GuardError
from shardwise.train.loop import train
from shardwise.train.watching.watchdog import StopFlag
from tests.dist.cells import execution, journal_of, prepare_cell, run_built
from tests.dist.worlds import said_by

DDP = execution(Layout(dp_replicate=2), micro_batch_size=4)


def _other_numbers(first: GlobalBatch, batch: GlobalBatch) -> GlobalBatch:
    pairs = zip(first.micro_batches, batch.micro_batches, strict=True)
    return replace(batch, micro_batches=tuple(replace(old, sample_ids=micro.sample_ids) for old, micro in pairs))


#: What is made of the first batch and of the one that a rank should see, and what is said of it.
SEEN: dict[str, tuple[Callable[[GlobalBatch, GlobalBatch], GlobalBatch], str]] = {
    "first rows": (lambda first, batch: replace(batch, micro_batches=first.micro_batches), "; rank 1 sees sample "),
    "first batch": (lambda first, batch: replace(first, step=batch.step), "Ranks do not see the samples they should"),
    "other numbers": (_other_numbers, "; rank 1 sees a row that is not the sample it is said to be"),
}


def _stops(built: Build, seen: str) -> tuple[str, int]:
    """From the third step on rank 1 sees something else."""
    make = Batches.from_
    first = next(iter(built.batches.from_(0)))

    def wrong(batches: Batches, step: int) -> Iterator[GlobalBatch]:
        for batch in make(batches, step):
            while not built.checkpoints.is_written:
                time.sleep(0.01)
            yield SEEN[seen][0](first, batch) if built.world.rank == 1 and batch.step > 2 else batch

    Batches.from_ = wrong
    journal = journal_of(built)
    return said_by(GuardError, train, built, start=0, journal=journal, stop=StopFlag()), journal.step


@pytest.mark.parametrize("seen", SEEN)
def test_a_rank_that_sees_rows_of_an_earlier_step_stops_the_run(seen, make_job, tmp_path) -> None:
    run = prepare_cell(make_job(train={"save_steps": 1}), tmp_path)
    (said,) = set(run_built(_stops, run, DDP, seen))
    assert said[0].startswith("step 3: 2 shares of the batch hold 8 samples, ")
    assert SEEN[seen][1] in said[0]
    assert said[1] == 3
    assert [step for step, _ in run.checkpoints()] == [2, 1], "the step that was taken on them is saved nowhere"
    assert [record["step"] for record in read_metrics(run)] == [1, 2]
