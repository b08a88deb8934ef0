"""Guards are always on, so they must cost next to nothing: under 1 % of a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from shardwise.data.seen import digest, join, samples_seen
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train.guards import check_peers, check_shares, gather
from shardwise.train.loop import REPLICA_CHECK_STEPS
from shardwise.train.replicas import check_replicas
from tests.dist.cells import composed, execution, prepare_cell
from tests.dist.worlds import run_world, toy_llama

STEPS = 6


def _shares(run: RunDirectory, chosen: Execution) -> tuple[float, float, float]:
    """Seconds of a step, of what guards do in every step, and of one comparison of replicas."""
    built = composed(run, chosen)
    steps: list[float] = []
    guards: list[float] = []
    replicas: list[float] = []
    for batch, _ in zip(built.batches.from_(0), range(STEPS), strict=False):
        began = time.perf_counter()
        built.step(batch)
        built.optimizer.step()
        built.optimizer.zero_grad()
        stepped = time.perf_counter()
        checksums = [batch.checksum] * built.world.size  # they travel with the step's other figures
        check_peers(built.world, batch, checksums)
        # As if all shares were alike, and together the batch: others' digests come with the step's other figures too.
        digests = digest(samples_seen(batch, built.data)), digest(batch.sample_ids)
        seen = [digests[0]] * built.world.size
        check_shares(built.world, batch, built.data, seen_by_rank=seen, asked_by_rank=[join(seen)])
        guarded = time.perf_counter()
        gather(built.world, None)  # wait for the others, which is no cost of the guard
        waited = time.perf_counter()
        check_replicas(built.world, built.model.parameters, when="now")
        replicas.append(time.perf_counter() - waited)
        steps.append(stepped - began)
        guards.append(guarded - stepped)
    return median(steps), median(guards), median(replicas)


@pytest.mark.slow
def test_guards_take_less_than_a_hundredth_of_a_step(
    make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path
) -> None:
    """A model of 9 million parameters, which steps faster than anything that is trained in earnest."""
    folder = tmp_path / "model"
    toy_llama(folder, tied=False, vocab_size=400, hidden_size=384, intermediate_size=1024, num_hidden_layers=6)
    for file in models["untied"].glob("token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    job = make_job().model_copy(update={"model": str(folder)})
    run = prepare_cell(job, tmp_path / "run")
    for step, guards, replicas in run_world(2, _shares, run, execution(Layout(dp_replicate=2), micro_batch_size=4)):
        share = (guards + replicas / REPLICA_CHECK_STEPS) / step
        print(f"step {step * 1e3:.1f} ms, guards {guards * 1e3:.3f} ms, replicas {replicas * 1e3:.1f} ms: {share:.3%}")
        assert share < 0.01
