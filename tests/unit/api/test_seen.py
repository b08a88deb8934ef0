"""What is forecast for the rows that a run saw is what a plan for such rows forecasts."""

import pytest

from shardwise import api
from shardwise.api.after import memory_seen
from shardwise.spec.run import RunDirectory, write_json


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "pp"])
def test_the_forecast_is_asked_for_the_longest_row_that_was_seen(layout, job, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    stated = [f"layout={layout}", "train.micro_batch_size=4", "train.max_steps=2", "train.global_batch_size=16"]
    whole, short = (api.plan(job(), overrides=[*stated, f"data.max_length={length}"]).best for length in (64, 16))
    write_json(run.plan, api.plan(job(), overrides=stated).to_json())
    for length, best in ((64, whole), (16, short)):
        write_json(run.measured, {"rows_seen": [length, length]})
        seen = memory_seen(run)
        assert (seen.first, seen.later) == (length, length)
        assert seen.peaks == {rank: group.peak_bytes for group in best.memory.ranks for rank in group.ranks}
        for phases in seen.phases.values():
            assert list(phases) == ["loading", "forward_backward", "optimizer_step", "saving"]
            assert phases["loading"] < phases["saving"] <= phases["optimizer_step"]
    assert short.memory.peak_bytes < whole.memory.peak_bytes


def test_gradients_that_are_added_up_lie_beside_the_rows_of_later_forwards_alone(job, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    stated = ["hardware=cpu:1", "train.micro_batch_size=4", "train.gradient_checkpointing=none"]
    made = api.plan(job(), overrides=[*stated, "train.global_batch_size=16"])
    write_json(run.plan, made.to_json())
    once = api.plan(job(), overrides=[*stated, "train.global_batch_size=4"]).best.memory
    seen = {rows: memory_seen_of(run, rows) for rows in ((64, 16), (64, 64))}
    assert seen[64, 16] == once.peak_bytes < seen[64, 64] == made.best.memory.peak_bytes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_of_what_a_pipeline_has_in_flight_the_first_rows_are_the_longest(schedule, job, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    stated = ["hardware=cpu:2", "train.micro_batch_size=4", "train.global_batch_size=8"]
    layout = f"layout={{pp: 2, schedule: {schedule}}}"
    write_json(run.plan, api.plan(job(), overrides=[*stated, layout, "train.gradient_checkpointing=none"]).to_json())
    short, mixed, long = (memory_seen_of(run, rows) for rows in ((16, 16), (64, 16), (64, 64)))
    assert short < mixed < long


def memory_seen_of(run: RunDirectory, rows: tuple[int, int]) -> int:
    write_json(run.measured, {"rows_seen": rows, "trained_seen": [0, 0]})
    return memory_seen(run).peaks[0]


def test_nothing_is_forecast_where_rows_model_or_plan_are_not_known(job, tmp_path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert memory_seen(run) is None
    write_json(run.measured, {"rows_seen": [16, 0]})
    assert memory_seen(run) is None
    write_json(run.plan, api.plan(job()).to_json())
    assert memory_seen(run) is not None
    (tmp_path / "model" / "config.json").unlink()
    assert memory_seen(run) is None
