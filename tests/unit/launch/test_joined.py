import signal
import socket
import threading
import time
from dataclasses import replace

import pytest

from shardwise.errors import InputError, RunDirectoryError
from shardwise.launch.processes import torchrun as joined
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.torchrun import Place
from tests.refusals import must_refuse, said_by

STARTED = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h"}
FIRST = Place(rank=0, size=2, local_size=2, launch="x")
SECOND = replace(FIRST, rank=1)


def silent(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def left_over(monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    found = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)


REMEDY = (
    "start them together, by torchrun or srun; if RANK and WORLD_SIZE are left over from another start, put `env -u "
    "RANK -u WORLD_SIZE -u LOCAL_RANK -u MASTER_ADDR -u MASTER_PORT` before the command"
)


def test_a_place_is_read_from_the_launchers_variables_with_how_long_it_waits(monkeypatch) -> None:
    assert joined.place_in_group({}) is None
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        assert joined.place_in_group({key: value for key, value in STARTED.items() if key != name}) is None
    place = joined.place_in_group(STARTED)
    assert (place.rank, place.size, place.local_size) == (1, 4, 2)
    assert place.launch == joined.place_in_group({**STARTED, "RANK": "3"}).launch
    fewer = joined.place_in_group({**STARTED, "WORLD_SIZE": "3"})
    assert place.launch != fewer.launch, "a start with fewer machines, which is planned again"
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert (FIRST.patience, replace(FIRST, local_size=1).patience) == (300, 600)


@pytest.mark.parametrize("wrong", [{"RANK": "one"}, {"RANK": "4"}, {"LOCAL_WORLD_SIZE": "9"}, {"WORLD_SIZE": ""}])
def test_impossible_variables_are_refused(wrong) -> None:
    must_refuse(InputError, "the environment says", joined.place_in_group, {**STARTED, **wrong})


def test_the_other_ranks_exit_with_the_code_of_rank_0_and_quietly(run, capfd, monkeypatch) -> None:
    monkeypatch.setattr(joined, "STOPPED_WITHIN_SECONDS", 0.3)
    for code, at_least in ((2, 0.3), (0, 0.0)):
        joined.write_exit(run, FIRST, exit_code=code)
        began = time.monotonic()
        with pytest.raises(SystemExit) as caught:
            joined.wait_for_rank_0(run, SECOND, say=silent)
        assert caught.value.code == code
        assert time.monotonic() - began >= at_least, "rank 0 has time to print the error"
        assert capfd.readouterr() == ("", "")


def test_the_other_ranks_wait_while_rank_0_prepares_and_say_where_there_is_no_sign_of_it(run, monkeypatch, left_over):
    monkeypatch.setattr(joined, "SAID_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(joined, "PATIENCE_SECONDS", 0.5)
    said: list[str] = []
    refusal = said_by(RunDirectoryError, joined.wait_for_rank_0, run, SECOND, say=said.append)
    waits = f"rank 1 of 2 on {socket.gethostname()} waits for rank 0 at 127.0.0.1:29500, and sees no sign of it in "
    assert said == [f"{waits}{run.logs}; {REMEDY}"]
    assert refusal == f"{waits}{run.logs} after 0.5 s; {REMEDY}"
    with pytest.raises(RunDirectoryError, match="output_dir must lie on a disk that all nodes share, at the same path"):
        joined.wait_for_rank_0(run, replace(SECOND, local_size=1), say=said.append)
    joined.write_preparing(run, FIRST)
    joined.write_begin(run, replace(FIRST, launch="another"), kind="cpu")
    heard: list[str] = []
    waits = threading.Thread(target=lambda: heard.append(joined.wait_for_rank_0(run, SECOND, say=silent)), daemon=True)
    waits.start()
    waits.join(timeout=1.0)
    assert waits.is_alive()
    joined.write_begin(run, FIRST, kind="cuda")
    waits.join(timeout=5)
    assert heard == ["cuda"], "and nothing of another launch"


def test_rank_0_waits_for_a_sign_of_each_rank_and_names_those_that_leave_none(run, monkeypatch, left_over) -> None:
    joined.write_preparing(run, FIRST)
    waiting = threading.Thread(target=joined.wait_for_rank_0, args=(run, SECOND), kwargs={"say": silent}, daemon=True)
    waiting.start()
    with StopRequests() as requests:
        joined.await_others(run, FIRST, requests=requests, say=silent)
        joined.write_begin(run, FIRST, kind="cpu")
        waiting.join(timeout=5)
        monkeypatch.setattr(joined, "PATIENCE_SECONDS", 0.3)
        monkeypatch.setattr(joined, "SAID_AFTER_SECONDS", 0.1)
        said: list[str] = []
        with pytest.raises(RunDirectoryError) as caught:
            joined.await_others(run, replace(FIRST, size=4), requests=requests, say=said.append)
        waits = f"rank 0 of 4 on {socket.gethostname()} waits for ranks 2-3 at 127.0.0.1:29500"
        waits += f", and sees no sign of them in {run.logs}"
        assert said == [f"{waits}; output_dir must lie on a disk that all nodes share, at the same path; {REMEDY}"]
        assert f"{waits} after 0.3 s; output_dir must lie on a disk" in str(caught.value)
        monkeypatch.setattr(joined, "PATIENCE_SECONDS", 60.0)
        signal.raise_signal(signal.SIGTERM)
        joined.await_others(run, replace(FIRST, size=4), requests=requests, say=silent)
    with joined.exit_written_on_error(run, FIRST):
        pass
    assert not list(run.logs.glob("here-*"))


@pytest.mark.slow
def test_a_start_over_several_machines_leaves_nothing_that_the_next_of_its_name_would_read(run, monkeypatch) -> None:
    monkeypatch.setattr(joined, "READ_WITHIN_SECONDS", 1.0)
    first, second = (replace(place, local_size=1) for place in (FIRST, SECOND))
    codes: list[object] = []

    def follow() -> None:
        with pytest.raises(SystemExit) as caught:
            joined.wait_for_rank_0(run, second, say=silent)
        codes.append(caught.value.code)

    waiting = threading.Thread(target=follow)
    waiting.start()
    with joined.exit_written_on_error(run, first):
        joined.write_exit(run, first, exit_code=0)  # it has come to its end before
    waiting.join(timeout=5)
    assert codes == [0]
    with pytest.raises(InputError), joined.exit_written_on_error(run, first):
        raise InputError("a mistake")
    with joined.exit_written_on_error(run, first):
        joined.write_begin(run, first, kind="cpu")
    assert list(run.logs.glob("start-*")) == []
    with joined.exit_written_on_error(run, FIRST):
        joined.write_begin(run, FIRST, kind="cpu")
    assert len(list(run.logs.glob("start-*"))) == 1, "of one machine names are never the same"


def test_a_signal_after_an_error_does_not_end_the_rank_that_is_to_print_it(run) -> None:
    def heard(number: int, _frame: object) -> None:
        raise InterruptedError(number)

    before = signal.signal(signal.SIGTERM, heard)
    try:
        with pytest.raises(RunDirectoryError), StopRequests(also_after_errors=True) as requests:
            raise RunDirectoryError("the cause")
        with pytest.raises(KeyboardInterrupt):  # a program that goes on is stopped as before
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert requests.received == [signal.SIGTERM]
        said_by(InterruptedError, signal.raise_signal, signal.SIGTERM)
        with StopRequests(also_after_errors=True):
            pass
        said_by(InterruptedError, signal.raise_signal, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
