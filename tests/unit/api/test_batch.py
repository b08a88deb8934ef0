"""Which micro-batches `train --find-batch` tries, what it says, and what it leaves behind."""

import pytest

from shardwise import api
from shardwise.api.runs.batch import largest, sizes_beside
from shardwise.cli.progress import plan_lines
from shardwise.errors import DoesNotFitError, InputError, WorkerFailedError
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.file import read_plan
from shardwise.spec.run import read_json
from tests.unit.api.conftest import TRAIN

#: A trainer whose ranks measure what the test says of a micro-batch; one of 8 has no memory.
MEASURED = """
size = json.loads((run.root / "plan.json").read_text())["candidates"][0]["micro_batch_size"]
data = json.loads((run.root / "data.json").read_text())
if "trial_rows" in data:
    assert data["eval"] is None
    if size == 8:
        fail("out of memory: planned", error="OutOfMemoryError")
    if rank == 0:
        peaks = PEAKS.get(size, 1 << 50)
        ranks = [{"rank": n, "peak_memory_bytes": peaks // (n + 1)} for n in range(2)]
        write_json(run.root / "measured.json", {"ranks": ranks})
"""

OPEN = "train: {global_batch_size: 16, save_steps: 5}"
TRIED = [(8, 4, [4, 8]), (16, 4, [4, 8, 16]), (6, 4, [4, 8, 6]), (1, 4, [4, 2, 1]), (2, 8, [8, 4, 2, 3])]


def measuring(make, peaks: dict[int, int]) -> None:
    make(f"PEAKS = {peaks}\n{MEASURED}{TRAIN}")


@pytest.mark.parametrize(("most", "first", "tried"), [*TRIED, (0, 2, [2, 1]), (3, 1, [1, 2, 4, 3])])
def test_sizes_are_doubled_until_one_does_not_fit_then_bisected(most, first, tried) -> None:
    seen: list[int] = []
    sizes = [1, 2, 3, 4, 6, 8] if most < 16 else [1, 2, 4, 8, 16]
    found = largest(sizes, first, lambda size: seen.append(size) or size <= most)
    assert (seen, found or 0) == (tried, most)


def test_sizes_divide_the_share_of_a_rank_which_has_all_of_its_global_batch() -> None:
    first = Execution(layout=Layout(dp_shard=4), micro_batch_size=5, gradient_accumulation_steps=3)
    assert sizes_beside(first, global_batch_size=48) == (1, 2, 3, 4, 5, 6, 12)
    assert sizes_beside(first, global_batch_size=3) == (1, 5)


def test_the_largest_that_fits_is_planned_with_the_trials_and_the_forecast_in_a_sentence(make, job) -> None:
    measuring(make, {1: 10 << 20, 2: 20 << 20, 4: 40 << 20})
    updates: list[api.Update] = []
    result = api.train(job(OPEN), find_micro_batch=True, on_update=updates.append)
    plan = read_plan(result.run.plan)
    assert plan.best.execution.micro_batch_size == 4
    assert (plan.best.execution.gradient_accumulation_steps, plan.job["train"]["micro_batch_size"]) == (2, "auto")
    assert "trial_rows" not in read_json(result.run.data)
    sentence = plan.best.reasons[0]
    assert sentence.startswith("tried micro-batches 8, 4: 4 is the largest that fits, measured 40.0 MiB of ")
    assert sentence.endswith("iB; 8 ran out of memory") and ", forecast " in sentence
    assert f"  - {sentence}" in plan_lines([update for update in updates if isinstance(update, api.Planned)][-1])
    tried = [u.name for u in updates if isinstance(u, api.Phase) and u.name.startswith("trying")]
    assert tried == ["trying micro-batch 8", "trying micro-batch 4"]
    assert result.step == 3


def test_a_run_that_goes_on_keeps_what_it_found(make, job) -> None:
    measuring(make, {1: 10 << 20, 2: 20 << 20, 4: 40 << 20})
    api.train(job(OPEN), find_micro_batch=True)
    run = api.train(job(OPEN)).run
    make(f"assert 'trial_rows' not in json.loads((run.root / 'data.json').read_text())\n{TRAIN}")
    (run.logs / "outcome.json").unlink()
    for again in (False, True):
        api.train(job(OPEN), find_micro_batch=again)
        plan = read_plan(run.plan)
        assert (plan.best.execution.micro_batch_size, len(plan.found_batch.tried)) == (4, 2)
        (run.logs / "outcome.json").unlink()
    api.train(job(OPEN), overrides=["train.micro_batch_size=1"])
    plan = read_plan(run.plan)
    assert (plan.best.execution.micro_batch_size, plan.found_batch) == (1, None)


def test_none_that_fits_and_another_failure_end_the_run_with_a_sentence(make, job) -> None:
    measuring(make, {})
    with pytest.raises(DoesNotFitError, match=r"^tried micro-batches 8, 4, 2, 1: none fits; 1 took 1024 TiB of "):
        api.train(job(OPEN), find_micro_batch=True)
    make("fail('of something else')")
    with pytest.raises(WorkerFailedError, match=r"ValueError: of something else(.|\n)*logs/batch_8/logs/rank_"):
        api.train(job(OPEN), find_micro_batch=True)


def test_a_stated_micro_batch_and_other_launchers_are_refused(make, job, monkeypatch) -> None:
    sentence = (
        r"job\.yaml:5: .*micro_batch_size is 2, and --find-batch finds it; leave one of them out, or add "
        r"--set train\.micro_batch_size=auto"
    )
    with pytest.raises(InputError, match=sentence):
        api.train(job("train: {micro_batch_size: 2}"), find_micro_batch=True)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="--find-batch starts the processes of each trial itself; run it without"):
        api.train(job(), find_micro_batch=True)
