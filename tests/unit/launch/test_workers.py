"""The launcher with small workers."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shardwise.errors import InputError, RanOutOfMemoryError, WorkerFailedError
from shardwise.launch.follow import FollowUpdate, Notice, Phase, StepMetrics
from shardwise.launch.processes import workers
from shardwise.launch.processes.command import STARTED
from shardwise.launch.processes.process_tree import PROC
from shardwise.launch.processes.workers import run_workers
from shardwise.launch.ranks import local_ranks
from shardwise.spec.run import RunDirectory, read_json, write_json
from tests.marks import first
from tests.refusals import must_refuse, said_by
from tests.unit.fakes import processes_of, wait_until

pytestmark = pytest.mark.dist


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_SECONDS", 1.0)


LOOP = """
listen()
print("to stdout"); print("to stderr", file=sys.stderr)
while not stopped:
    time.sleep(0.02)
time.sleep(0.5)  # the save
write_json(run.logs / f"signals_{rank}.json", stopped)
outcome("stopped", signal=stopped[0])
"""


def test_workers_that_finish_give_their_outcome_updates_logs_and_environment(run, worker, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    worker("""
listen()
print("to stdout", flush=True); print("to stderr", file=sys.stderr)
names = ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR")
names += ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
write_json(run.logs / f"environment_{rank}.json", {name: os.environ.get(name) for name in names})
if rank == 0:
    announce(run, "training", total_steps=3)
    append_line(run.metrics, {"step": 1, "loss": 2.5, "peak_memory_bytes": [10, 20]})
outcome("finished")
""")
    updates: list[FollowUpdate] = []
    run_workers(run, processes=2, on_update=updates.append)
    step = StepMetrics(step=1, loss=2.5, peak_memory_bytes=20)
    assert updates == [Phase(name="training", total_steps=3, detail={}), step]
    for rank in (0, 1):
        assert run.rank_log(rank).read_text() == f"{STARTED}\nto stdout\nto stderr\n"
        threads = max(1, len(os.sched_getaffinity(0)) // 2)
        expected = {"OMP_NUM_THREADS": f"{threads}", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        expected |= {"MASTER_ADDR": "127.0.0.1", "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
        expected |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        assert read_json(run.logs / f"environment_{rank}.json") == expected
    assert processes_of(run) == []


def test_the_launcher_goes_on_when_the_ranks_have_ended_not_at_its_next_look(run, worker, monkeypatch) -> None:
    monkeypatch.setattr(workers, "POLL_SECONDS", 60.0)
    began = time.monotonic()
    worker('listen()\noutcome("finished")')
    run_workers(run, processes=2)
    assert time.monotonic() - began < 30


def test_a_failing_rank_ends_all_within_seconds_with_one_first_cause(run, worker) -> None:
    worker("""
listen()
if rank == 1:
    wait_for(run.logs / "rank_0.pid")
    write_json(run.logs / "failed_at.json", time.time())
    fail("the loss is nan")
time.sleep(600)  # a rank that hangs in a collective and does not hear the signal
""")
    said, ended = said_by(WorkerFailedError, run_workers, run, processes=2), time.time()
    first, log = said.splitlines()
    assert first == "rank 1 failed while training (step 17): ValueError: the loss is nan (loop.py:88)"
    assert log == f"its log: {run.rank_log(1)}"
    assert ended - float((run.logs / "failed_at.json").read_text()) < 10
    assert processes_of(run) == []


def test_a_rank_that_is_killed_is_the_cause_even_when_its_peers_complain_first(run, worker) -> None:
    worker("""
listen()
if rank == 1:
    print("last words", flush=True)
    wait_for(run.logs / "rank_0.pid")
    os.kill(os.getpid(), signal.SIGKILL)
wait_for(run.logs / "rank_1.pid")
fail("connection closed by peer")
""")
    said = said_by(RanOutOfMemoryError, run_workers, run, processes=2)
    assert said.startswith("rank 1 was ended by signal 9 (SIGKILL); the kernel does that when")
    assert said.endswith("  | last words"), "there is no checkpoint to go on from"
    assert processes_of(run) == []


def test_what_ended_a_rank_is_told_with_the_checkpoint_that_the_same_command_goes_on_from(run, worker) -> None:
    worker("os.kill(os.getpid(), signal.SIGKILL)")
    write_json(run.checkpoint(2) / "manifest.json", {})
    with pytest.raises(WorkerFailedError, match=r"rank 0 was ended by signal 9 \(SIGKILL\)") as caught:
        run_workers(run, processes=1)
    assert str(caught.value).splitlines()[-1] == f"the same command goes on from {run.checkpoint(2)}"


#: Comes to its end and is aborted then, as by threads that outlive their group.
ABORTED = """
listen()
if rank == 0:
    write_text(run.final / "config.json", "{}")
    write_json(run.final / "manifest.json", {"files": {"config.json": {"size": SIZE, "sha256": SHA256}}})
outcome("finished")
wait_for(run.logs / "outcome.json")
os.abort()
"""


@pytest.mark.parametrize("is_whole", first(1, [True, False]))
def test_a_run_that_has_finished_has_finished_whatever_ends_its_processes(run, worker, *, is_whole) -> None:
    size, digest = 2 if is_whole else 3, hashlib.sha256(b"{}").hexdigest()
    worker(f"SIZE, SHA256 = {size}, {digest!r}\n{ABORTED}")
    updates: list[FollowUpdate] = []
    if not is_whole:
        must_refuse(WorkerFailedError, "was ended by signal 6", run_workers, run, processes=2)
        return
    run_workers(run, processes=2, on_update=updates.append)
    (notice,) = [update for update in updates if isinstance(update, Notice)]
    assert notice.text.startswith("the run had finished, and its result is whole, before this happened: rank ")
    assert notice.text.endswith("was ended by signal 6 (SIGABRT)")


def test_a_restarted_group_that_finishes_is_a_success(run, worker) -> None:
    worker("""
if not (run.root / "failed").exists():
    if rank == 1:
        (run.root / "failed").touch()
        fail("the first time")
    time.sleep(600)
outcome("finished")
""")
    updates: list[FollowUpdate] = []
    run_workers(run, processes=2, max_restarts=1, on_update=updates.append)
    (notice,) = [update.text for update in updates if isinstance(update, Notice)]
    assert notice.startswith("rank 1 failed while training (step 17): ValueError: the first time")
    assert notice.endswith("; all ranks are started again")
    (run.root / "failed").unlink()
    must_refuse(WorkerFailedError, "the first time", run_workers, run, processes=2)


def test_what_the_user_has_to_change_is_not_started_again(run, worker) -> None:
    worker('(run.root / str(os.getpid())).touch()\nfail("no such row", input_error=True)')
    must_refuse(InputError, r"^no such row$", run_workers, run, processes=1, max_restarts=3)
    assert len([path for path in run.root.iterdir() if path.name.isdigit()]) == 1


def test_ranks_wait_for_the_word_and_end_with_those_who_have_none_for_them(run, worker) -> None:
    worker("(run.root / f'began-{rank}').touch()\noutcome('finished')")
    with local_ranks(run, processes=2) as ranks:
        time.sleep(0.5)
        assert ranks.look()
        assert not list(run.root.glob("began-*"))
        run_workers(run, processes=2, waiting=ranks)
    assert len(list(run.root.glob("began-*"))) == 2
    with local_ranks(run, processes=2):
        assert len(processes_of(run)) == 2
    assert processes_of(run) == []


LAUNCHER = """
import sys
from pathlib import Path
from shardwise.errors import ShardwiseError
from shardwise.launch.lock import locked
from shardwise.launch.processes import command
from shardwise.launch.processes.workers import run_workers
from shardwise.spec.run import RunDirectory
command.WORKER = sys.argv[2]
run = RunDirectory(Path(sys.argv[1]))
try:
    with locked(run) as lock:
        run_workers(run, processes=2, lock=lock)
        print("finished")
except ShardwiseError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def launch(run: RunDirectory, module: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, str(run.root), module], stdout=subprocess.PIPE, text=True)


@contextmanager
def listening(run: RunDirectory, module: str) -> Iterator[subprocess.Popen[str]]:
    """A launcher whose two ranks listen for signals."""
    with launch(run, module) as launcher:
        wait_until(lambda: all((run.logs / f"rank_{rank}.pid").exists() for rank in (0, 1)))
        yield launcher


@pytest.mark.parametrize(("name", "code"), first(1, [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 143)]))
def test_a_signal_reaches_each_rank_once_and_the_save_is_waited_for(run, worker, name, code) -> None:
    number = signal.Signals[name]
    with listening(run, worker(LOOP)) as launcher:
        launcher.send_signal(number)
        said, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == code
    assert said.startswith("stopped after step 3 by SIG")
    passed_on = signal.SIGTERM if number == signal.SIGHUP else number
    for rank in (0, 1):
        assert (run.logs / f"signals_{rank}.json").read_text().split() == ["[", str(int(passed_on)), "]"]
    assert processes_of(run) == []


@pytest.mark.slow
def test_a_signal_before_the_workers_listen_is_kept_for_them(run, worker) -> None:
    with launch(run, worker("wait_for(run.root / 'go')" + LOOP)) as launcher:
        wait_until(lambda: run.rank_log(1).exists())
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        (run.root / "go").touch()
        launcher.communicate(timeout=60)
    assert launcher.returncode == 143
    assert (run.logs / "signals_1.json").exists()


def test_a_second_signal_ends_everything_at_once(run, worker) -> None:
    with listening(run, worker("listen()\nwhile True: time.sleep(1)")) as launcher:
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert launcher.poll() is None
        launcher.send_signal(signal.SIGTERM)
        began = time.monotonic()
        said, _ = launcher.communicate(timeout=60)
        assert time.monotonic() - began < 3
    assert launcher.returncode == 143
    assert said.startswith("ended at once by a second signal")
    assert processes_of(run) == []


def test_no_worker_outlives_a_launcher_that_is_killed(run, worker) -> None:
    with listening(run, worker(LOOP)) as launcher:
        launcher.kill()
        wait_until(lambda: processes_of(run) == [], seconds=10)
    assert (run.logs / "signals_0.json").exists(), "the workers had the time to save"


@pytest.mark.slow
def test_nothing_listens_on_the_network(run, worker) -> None:
    with listening(run, worker('listen()\nwait_for(run.root / "looked")\noutcome("finished")')) as launcher:
        addresses_of = {pid: sockets_listening(pid) for pid in [launcher.pid, *processes_of(run)]}
        (run.root / "looked").touch()
        launcher.communicate(timeout=60)
    assert len(addresses_of) >= 3, "launcher and two ranks"
    found = [address for addresses in addresses_of.values() for address in addresses]
    assert all(address.startswith("0100007F:") for address in found), addresses_of


def sockets_listening(pid: int) -> list[str]:
    """Local addresses on which a process listens; 0A is the kernel's number for that state."""
    files = [PROC / str(pid) / "net" / name for name in ("tcp", "tcp6")]
    rows = [line.split() for file in files for line in file.read_text().splitlines()]
    waiting = {f"socket:[{row[9]}]": row[1] for row in rows if row[3] == "0A"}
    held = [str(link.readlink()) for link in (PROC / str(pid) / "fd").iterdir() if link.is_symlink()]
    return [waiting[socket] for socket in held if socket in waiting]
