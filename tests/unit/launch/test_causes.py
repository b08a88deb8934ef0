"""What is heard of ranks: their steps and phases, and the first cause of a failure."""

from datetime import UTC, datetime, timedelta

import pytest

from shardwise.errors import InputError, UnsupportedError, WorkerFailedError
from shardwise.launch.failure import RankExit, first_cause, how_it_ended
from shardwise.launch.follow import Follower, Phase, StepMetrics
from shardwise.launch.processes.command import STARTED
from shardwise.spec.run import RunDirectory, announce, append_line, write_json

KILLED = [RankExit(rank=1, code=-9), RankExit(rank=0, code=-15)]
ENDED = [RankExit(rank=1, code=-15), RankExit(rank=0, code=3)]


def failure(rank: int, time: float, **detail: object) -> dict[str, object]:
    return {"time": time, "rank": rank, "phase": "training (step 2)", "error": "E", "message": f"of {rank}", **detail}


CLOSED = {"message": "Connection closed by peer"}
SHORT = {"message": "out of memory: planned 1", "error": "OutOfMemoryError"}
#: What ranks wrote, at which time, and how others ended -> how the cause begins.
CAUSES = {
    "the earliest written": ([(0, 2.0, {}), (1, 1.0, {})], (), "rank 1 failed while training (step 2): E: of 1\n"),
    "a rank that vanished": ([(0, 1.0, {})], KILLED, "rank 1 was ended by signal 9 (SIGKILL)"),
    "no memory": ([(1, 1.0, CLOSED), (2, 2.0, SHORT)], KILLED, "rank 2 failed while training (step 2): out of memory"),
    "one that a library ended": ([(1, 1.0, CLOSED)], ENDED, "rank 0 ended with exit code 3 and left no reason"),
    "none that stopped as it was asked to": ([(1, 1.0, {})], [RankExit(rank=0, code=143)], "rank 1 failed"),
}


@pytest.mark.parametrize("which", CAUSES)
def test_the_cause_comes_before_what_peers_came_to(run: RunDirectory, which: str) -> None:
    failures, exits, begins = CAUSES[which]
    for rank, time, detail in failures:
        write_json(run.rank_failure(rank), failure(rank, time, **detail))
    run.rank_log(1).write_text("one\ntwo\n")
    cause = first_cause(run, processes=3, exits=exits)
    assert isinstance(cause, WorkerFailedError) and str(cause).startswith(begins)
    assert str(cause).endswith(f"the end of {run.rank_log(1)}:\n  | one\n  | two") == ("vanished" in which)


@pytest.mark.parametrize(("error", "kind"), [("E", InputError), ("UnsupportedError", UnsupportedError)])
def test_a_failure_of_the_users_input_and_a_refusal_stay_what_they_are(run: RunDirectory, error, kind) -> None:
    write_json(run.rank_failure(0), failure(0, 1.0, input_error=True, error=error, message="a.jsonl:3: empty"))
    cause = first_cause(run, processes=1)
    assert type(cause) is kind
    assert str(cause) == "a.jsonl:3: empty"


#: As torch's NCCL watchdog and its peers write, two seconds later, when rank 1's device fails.
FAULT = """/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [0,0,0], thread: [0,0,0] \
Assertion `srcIndex < srcSelectDimSize` failed.
[rank1]:[E{} ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with \
exception: CUDA error: device-side assert triggered
terminate called after throwing an instance of 'c10::DistBackendError'
"""
OF_A_PEER = """[rank0]:[E{} ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0 Rank 0] Process group watchdog thread \
terminated with exception: NCCL error: remote process exited or there was a network error
"""


def test_of_aborted_ranks_the_first_whose_log_has_a_fault_of_its_device_is_the_cause(run: RunDirectory) -> None:
    now = datetime.now(UTC).astimezone().replace(microsecond=0)
    at = [(now + timedelta(seconds=seconds)).strftime("%m%d %H:%M:%S.123456789") for seconds in (0, 2)]
    run.rank_log(1).write_text(f"{STARTED}\n{FAULT.format(at[0])}")
    run.rank_log(0).write_text(f"{STARTED}\n{OF_A_PEER.format(at[1])}")
    exits = [RankExit(rank=0, code=-6), RankExit(rank=1, code=-6)]
    write_json(run.rank_failure(2), failure(2, now.timestamp() + 1, message="Connection closed by peer"))
    cause = str(first_cause(run, processes=3, exits=exits))
    assert cause.startswith("rank 1 was ended by signal 6 (SIGABRT): /pytorch/aten/src/ATen/native/cuda/Indexing.cu")
    assert cause.endswith(f"failed.\nits log: {run.rank_log(1)}")
    run.rank_log(0).write_text(f"{STARTED}\n{FAULT.format(at[1])}")
    assert "rank 1 was ended" in str(first_cause(run, processes=3, exits=exits))
    write_json(run.rank_failure(2), failure(2, now.timestamp() - 1, message="Disk full"))
    assert "rank 2 failed" in str(first_cause(run, processes=3, exits=exits)), "it had failed before"
    run.rank_log(1).write_text(f"{STARTED}\nterminate called without an active exception\n")
    run.rank_log(0).write_text(f"{STARTED}\n{OF_A_PEER.format('1399 25:00:00.123456789')}")
    assert "rank 2 failed" in str(first_cause(run, processes=3, exits=exits)), "no log has a fault"


def test_what_an_earlier_start_wrote_to_the_log_is_not_how_this_one_ended(run: RunDirectory) -> None:
    log = run.rank_log(1)
    for wrote, said in (("", f"it wrote nothing to its log: {log}"), ("one\n", f"the end of {log}:\n  | one")):
        log.write_text(f"{STARTED}\nNo space left on device\n{STARTED}\n{wrote}")
        assert str(first_cause(run, processes=2, exits=KILLED)).endswith(said)


@pytest.mark.parametrize("failure", [None, "", "{", "[]"])
def test_where_no_rank_could_say_why_the_ends_of_their_logs_are_shown(run: RunDirectory, failure: str | None) -> None:
    run.rank_log(1).write_text(f"{STARTED}\nNo space left on device\n")
    if failure is not None:
        run.rank_failure(0).write_text(failure)
    cause = first_cause(run, processes=2)
    assert isinstance(cause, WorkerFailedError)
    assert str(cause).startswith("the ranks failed, and none could say why")
    assert "  | No space left on device" in str(cause)


def test_a_failure_without_a_reason_is_one(run: RunDirectory) -> None:
    run.rank_failure(0).write_text('{"time": "late"}')
    assert str(first_cause(run, processes=1)).startswith("rank 0 failed while starting: an error: ")


def test_exit_codes_in_words() -> None:
    assert how_it_ended(3) == "ended with exit code 3 and left no reason"
    assert how_it_ended(-11) == "was ended by signal 11 (SIGSEGV); a native library crashed"
    assert how_it_ended(-63) == "was ended by signal 63"


def test_what_stood_in_the_files_before_is_not_told_again(run: RunDirectory) -> None:
    announce(run, "training", total_steps=10)
    append_line(run.metrics, {"step": 1, "loss": 3.0})
    follower = Follower(run)
    assert follower.updates() == []
    announce(run, "training", total_steps=10, first_step=2)
    append_line(run.metrics, {"step": 2, "loss": 2.0})
    phase = Phase(name="training", total_steps=10, detail={"first_step": 2})
    assert follower.updates() == [phase, StepMetrics(step=2, loss=2.0)] and follower.updates() == []


def test_a_line_that_is_still_being_written_is_told_when_it_is_whole(run: RunDirectory) -> None:
    follower = Follower(run)
    with run.metrics.open("a") as file:
        file.write('{"step": 1, "lo')
        file.flush()
        assert follower.updates() == []
        file.write('ss": 2.5}\n')
    assert follower.updates() == [StepMetrics(step=1, loss=2.5)]


def test_a_file_that_a_resumed_trainer_cut_off_is_followed_from_its_new_end(run: RunDirectory) -> None:
    for step in range(1, 6):
        append_line(run.metrics, {"step": step})
    follower, kept = Follower(run), run.metrics.read_text().splitlines(keepends=True)[:2]
    run.metrics.write_text("".join(kept))
    assert follower.updates() == []
    append_line(run.metrics, {"step": 3})
    assert follower.updates() == [StepMetrics(step=3)]


def test_lines_that_are_no_records_are_passed_over(run: RunDirectory) -> None:
    follower = Follower(run)
    run.metrics.write_text('nonsense\n[1]\n{"loss": 1}\n{"step": true}\n{"step": 4, "loss": null, "epoch": "one"}\n')
    run.events.write_text('{"time": 1}\n{"phase": "loading", "total_steps": "many"}\n')
    assert follower.updates() == [Phase(name="loading", total_steps=None, detail={}), StepMetrics(step=4)]
