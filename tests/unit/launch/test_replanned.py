"""A run that comes back with another number of processes."""

import pytest

from shardwise import api
from shardwise.api.runs.opening import replanned
from shardwise.errors import RunDirectoryError
from shardwise.spec.run import append_line, write_json

BEFORE = {"first_step": 1, "hardware": "cpu:4", "world_size": 4}


@pytest.fixture
def now():
    """The plan for two processes."""
    return api.plan(overrides=["model=smollm2-135m", "hardware=cpu:2", "data.num_rows=10", "data.max_length=64"])


def test_it_is_said_what_it_was_planned_for_and_where_it_goes_on(run, now) -> None:
    append_line(run.starts, BEFORE)
    assert replanned(run, now, allowed=True) is None, "there is no checkpoint to go on from"
    write_json(run.checkpoint(7) / "manifest.json", {})
    layout = now.best.execution.layout
    assert replanned(run, now, allowed=True) == (
        f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2: it was planned again "
        f"({layout.strategy}, {layout.written}) and goes on from checkpoint-7 with the same global batch and the same "
        "samples"
    )


def test_it_is_refused_where_the_user_says_so(run, now) -> None:
    append_line(run.starts, BEFORE)
    write_json(run.checkpoint(7) / "manifest.json", {})
    with pytest.raises(RunDirectoryError) as caught:
        replanned(run, now, allowed=False)
    assert str(caught.value) == (
        f"the run in {run.root} was planned for cpu:4 and comes back with cpu:2, and --no-replan is set; start it with "
        "cpu:4 again, or leave --no-replan out to plan it again"
    )


def test_nothing_is_said_of_as_many_processes_as_before(run, now) -> None:
    append_line(run.starts, {**BEFORE, "hardware": "cpu:2", "world_size": 2})
    write_json(run.checkpoint(7) / "manifest.json", {})
    assert replanned(run, now, allowed=False) is None
