from __future__ import annotations

import pytest

from shardwise.errors import InputError, UnsupportedError, WorkerFailedError
from shardwise.launch.causes import RankExit, first_cause, how_it_ended, launcher_log, rank_exits, seen_exits
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


def test_a_failure_of_the_users_input_stays_one(run: RunDirectory) -> None:
    write_json(run.rank_failure(0), failure(0, 1.0, input_error=True, message="a.jsonl:3: empty"))
    cause = first_cause(run, processes=1, exit_code=1)
    assert isinstance(cause, InputError)
    assert not isinstance(cause, UnsupportedError)
    assert str(cause) == "a.jsonl:3: empty"


def test_a_refusal_by_a_worker_stays_one(run: RunDirectory) -> None:
    write_json(run.rank_failure(0), failure(0, 1.0, input_error=True, error="UnsupportedError", message="use tp: 1"))
    cause = first_cause(run, processes=1, exit_code=1)
    assert isinstance(cause, UnsupportedError)
    assert str(cause) == "use tp: 1"


def test_torchruns_summary_is_read_with_its_root_cause_first() -> None:
    assert rank_exits(SUMMARY) == [RankExit(rank=1, code=-9, pid=101), RankExit(rank=0, code=-15, pid=100)]


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


def test_a_rank_that_a_library_ended_comes_before_what_its_peers_wrote(run: RunDirectory) -> None:
    write_json(run.rank_failure(1), failure(1, 1.0, message="Connection closed by peer"))
    launcher_log(run).write_text(SUMMARY.replace("-9", "-15").replace("-15 (pid: 100)", "3 (pid: 100)"))
    cause = str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run)))
    assert cause.startswith("rank 0 ended with exit code 3 and left no reason")


def test_a_rank_that_stopped_as_it_was_asked_to_is_no_cause(run: RunDirectory) -> None:
    write_json(run.rank_failure(1), failure(1, 1.0))
    launcher_log(run).write_text(SUMMARY.replace("-15 (pid: 100)", "143 (pid: 100)"))
    assert "rank 1 failed" in str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run, ended_by_us=[101])))


def test_a_rank_that_the_launcher_killed_is_no_cause(run: RunDirectory) -> None:
    write_json(run.rank_failure(0), failure(0, 1.0))
    launcher_log(run).write_text(SUMMARY)
    assert str(first_cause(run, processes=2, exit_code=1, exits=seen_exits(run, ended_by_us={101}))).startswith(
        "rank 0 failed while"
    )


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
