from __future__ import annotations

import pytest

from shardwise.errors import InputError, UnsupportedError, WorkerFailedError
from shardwise.launch.causes import first_cause, how_it_ended, launcher_log, seen_exits
from shardwise.launch.rank import STARTED
from shardwise.spec.run import RunDirectory, write_json

SUMMARY = """
Failures:
[1]:
  time      : 2026-01-01_00:00:01
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 100)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 100
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 101)
"""


def failure(rank: int, time: float, **detail: object) -> dict[str, object]:
    return {"time": time, "rank": rank, "phase": "training (step 2)", "error": "E", "message": f"of {rank}", **detail}


def test_the_earliest_written_failure_is_the_cause(run: RunDirectory) -> None:
    for rank, time in ((0, 20.0), (1, 10.0), (2, 30.0)):
        write_json(run.rank_failure(rank), failure(rank, time))
    cause = first_cause(run, processes=3, exit_code=1)
    assert isinstance(cause, WorkerFailedError)
    assert str(cause).startswith("rank 1 failed while training (step 2): E: of 1\n")


@pytest.mark.parametrize(("name", "kind"), [("JobError", InputError), ("UnsupportedError", UnsupportedError)])
def test_a_refusal_by_a_worker_stays_one(run: RunDirectory, name: str, kind: type[Exception]) -> None:
    write_json(run.rank_failure(0), failure(0, 1.0, input_error=True, error=name, message="use tp: 1"))
    cause = first_cause(run, processes=1, exit_code=1)
    assert isinstance(cause, kind)
    assert isinstance(cause, UnsupportedError) is (kind is UnsupportedError)
    assert str(cause) == "use tp: 1"


@pytest.mark.parametrize(
    ("codes", "ended_by_us", "start"),
    [
        (("-15", "-9"), [101], "rank 1 failed while"),
        (("143", "-9"), [101], "rank 1 failed while"),
        (("3", "-15"), [], "rank 0 ended with exit code 3 and left no reason"),
    ],
)
def test_a_rank_that_was_ended_by_request_is_no_cause_and_one_that_a_library_ended_is(
    run: RunDirectory, codes: tuple[str, str], ended_by_us: list[int], start: str
) -> None:
    write_json(run.rank_failure(1), failure(1, 1.0, message="Connection closed by peer"))
    launcher_log(run).write_text(SUMMARY.replace("-9", codes[1]).replace("-15 (pid: 100)", f"{codes[0]} (pid: 100)"))
    exits = seen_exits(run, ended_by_us=ended_by_us)
    assert str(first_cause(run, processes=2, exit_code=1, exits=exits)).startswith(start)


def test_a_rank_that_vanished_comes_before_what_its_peers_wrote(run: RunDirectory) -> None:
    write_json(run.rank_failure(0), failure(0, 1.0))
    launcher_log(run).write_text(SUMMARY)
    run.rank_log(1).write_text("one\ntwo\n")
    cause = str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run)))
    assert cause.startswith("rank 1 was ended by signal 9 (SIGKILL)")
    assert cause.endswith(f"the end of {run.rank_log(1)}:\n  | one\n  | two")


def test_a_rank_without_memory_comes_before_whatever_its_peers_came_to(run: RunDirectory) -> None:
    write_json(run.rank_failure(1), failure(1, 1.0, message="Connection closed by peer"))
    write_json(run.rank_failure(2), failure(2, 2.0, message="out of memory: planned 1", error="OutOfMemoryError"))
    launcher_log(run).write_text(SUMMARY.replace("-15 (pid: 100)", "-9 (pid: 100)"))
    cause = str(first_cause(run, processes=3, exit_code=1, exits=seen_exits(run)))
    assert cause.startswith("rank 2 failed while training (step 2): out of memory: planned 1\n")


def test_what_an_earlier_start_wrote_to_the_log_is_not_how_this_one_ended(run: RunDirectory) -> None:
    launcher_log(run).write_text(SUMMARY)
    run.rank_log(1).write_text(f"{STARTED}\nNo space left on device\n{STARTED}\n")
    cause = str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run)))
    assert cause.endswith(f"it wrote nothing to its log: {run.rank_log(1)}")
    run.rank_log(1).write_text(f"{STARTED}\nNo space left on device\n{STARTED}\none\n")
    cause = str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run)))
    assert cause.endswith(f"the end of {run.rank_log(1)}:\n  | one")


def test_a_launcher_that_failed_before_any_rank_shows_its_log(run: RunDirectory) -> None:
    launcher_log(run).write_text("ImportError: no such thing\n")
    cause = str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run)))
    assert cause.startswith("torch.distributed.run ended with exit code 1")
    assert "  | ImportError: no such thing" in cause


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"time": "late"}'])
def test_a_damaged_failure_file_does_not_hide_that_the_run_failed(run: RunDirectory, damage: str) -> None:
    run.rank_failure(0).write_text(damage)
    assert isinstance(first_cause(run, processes=1, exit_code=1), WorkerFailedError)


def test_exit_codes_in_words() -> None:
    assert how_it_ended(3) == "ended with exit code 3 and left no reason"
    assert how_it_ended(-11) == "was ended by signal 11 (SIGSEGV); a native library crashed"
    assert how_it_ended(-63) == "was ended by signal 63"
