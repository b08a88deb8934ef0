"""Runs the workers of one machine: starts torch elastic, passes signals on, ends everything, says how it went.

The promises: a request to stop reaches each rank once and is waited for; a second one, or a failing rank, ends
everything within seconds; no process outlives this call, whatever ends it; one cause is named.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from shardwise.launch.causes import launcher_log, seen_exits, tail
from shardwise.launch.command import WORKER, require_torch, torchrun_argv, worker_environment
from shardwise.launch.conclusion import Outcome, conclude
from shardwise.launch.follow import Follower, Phase, Update, tell
from shardwise.launch.leash import leashed
from shardwise.launch.processes import end_all, of_launch, send
from shardwise.launch.signals import StopRequests
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import RunDirectory

POLL_SECONDS = 0.2

#: torchrun says this as soon as it has seen a rank fail and before it waits, half a minute, for the others.
CLOSING = "closing signal"


def forget_last_launch(run: RunDirectory) -> None:
    """Removes what an earlier launch said of its ranks and its end."""
    run.outcome.unlink(missing_ok=True)
    for pattern in ("rank_*.pid", "rank_*.failure.json", "rank_*.standing.json"):
        for path in run.logs.glob(pattern):
            path.unlink(missing_ok=True)


def run_workers(
    run: RunDirectory,
    *,
    processes: int,
    kind: DeviceKind = "cpu",
    module: str = WORKER,
    max_restarts: int = 0,
    grace_seconds: float = 3.0,
    lock: int | None = None,
    on_update: Callable[[Update], None] | None = None,
) -> Outcome:
    """Runs `processes` workers to their end.

    Args:
        kind: `cpu` hides the machine's GPUs from the workers.
        module: run as `python -m MODULE RUN_DIR` in each rank.
        max_restarts: how often torch elastic starts the group again after a failure.
        grace_seconds: how long the other ranks may live after one failed.
        lock: a descriptor that torchrun shall hold open as long as it lives.
        on_update: called with each new phase and step.

    Raises:
        StoppedError: a signal stopped the run.
        InputError: a worker refused the user's input.
        WorkerFailedError: a worker failed.
    """
    require_torch()
    forget_last_launch(run)
    with tempfile.TemporaryDirectory(prefix="shardwise-") as private, StopRequests() as requests:
        launch = uuid.uuid4().hex
        argv = torchrun_argv(
            run,
            module=module,
            processes=processes,
            rendezvous=Path(private) / "rendezvous",
            max_restarts=max_restarts,
        )
        environment = worker_environment(os.environ, launch=launch, processes=processes, kind=kind)
        torchrun = start(argv, environment=environment, log=launcher_log(run), lock=lock)
        watch = _Watch(run, launch=launch, processes=processes, requests=requests, grace_seconds=grace_seconds)
        follower = Follower(run)
        try:
            follow_process(torchrun, follower, requests=requests, look=watch.look, on_update=on_update)
        finally:
            end_all(launch)
            code = torchrun.wait()
        tell(follower.updates(), on_update)
        exits = seen_exits(run, ended_by_us=watch.ended_by_us)
        return conclude(run, code=code, exits=exits, requests=requests, processes=processes, on_update=on_update)


def start(
    argv: list[str],
    *,
    environment: dict[str, str],
    log: Path,
    lock: int | None,
    on_our_end: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Starts a program in a session of its own, so that a terminal's Ctrl-C reaches the launcher alone.

    Args:
        log: takes what the program prints.
        on_our_end: the signal it gets when this process ends without having ended it.
    """
    with log.open("wb") as file:
        return subprocess.Popen(
            leashed(argv, signal_number=on_our_end),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
        )


def follow_process(
    process: subprocess.Popen[bytes],
    follower: Follower,
    *,
    requests: StopRequests,
    look: Callable[[], None],
    on_update: Callable[[Update], None] | None,
) -> None:
    """Hands on what a run writes until its process has ended, or until someone asked twice to stop it.

    Args:
        look: called every `POLL_SECONDS`; it acts on what must not wait for the end.
    """
    while process.poll() is None and not requests.is_urgent:
        asked = requests.take_first()
        stopping = [Phase(name="stopping", total_steps=None, detail={"signal": asked.name})] if asked else []
        tell([*stopping, *follower.updates()], on_update)
        look()
        requests.wait(POLL_SECONDS)


class _Watch:
    """What the launcher does between two looks at torchrun."""

    def __init__(
        self, run: RunDirectory, *, launch: str, processes: int, requests: StopRequests, grace_seconds: float
    ) -> None:
        self.ended_by_us: set[int] = set()
        self._run = run
        self._launch = launch
        self._processes = processes
        self._requests = requests
        self._grace_seconds = grace_seconds
        self._told: set[int] = set()
        self._evidence: frozenset[str] = frozenset()
        self._survivors: frozenset[int] = frozenset()
        self._deadline = float("inf")

    def look(self) -> None:
        """Passes a request on to ranks that have not had it, and ends the survivors of a failure."""
        if self._requests.first is not None:
            self._pass_on(self._requests.first)
        self._end_survivors()

    def _pass_on(self, number: signal.Signals) -> None:
        """Ranks that are still importing get the signal when they listen to it."""
        for pid in self._ranks() - self._told:
            self._told.add(pid)
            send(pid, number)

    def _ranks(self) -> frozenset[int]:
        written = (read_pid(self._run.rank_pid(rank)) for rank in range(self._processes))
        return frozenset(pid for pid in written if pid is not None) & of_launch(self._launch)

    def _end_survivors(self) -> None:
        evidence = self._evidence_of_failure()
        if evidence != self._evidence:
            self._evidence = evidence
            if evidence and self._deadline == float("inf"):
                # Only those alive now: after a restart the group consists of new processes.
                self._survivors = self._ranks()
                self._deadline = time.monotonic() + self._grace_seconds
        if time.monotonic() > self._deadline:
            self._deadline = float("inf")
            for pid in self._survivors & of_launch(self._launch):
                self.ended_by_us.add(pid)
                send(pid, signal.SIGKILL)

    def _evidence_of_failure(self) -> frozenset[str]:
        files = (self._run.rank_failure(rank) for rank in range(self._processes))
        found = [f"{path.name} {path.stat().st_mtime_ns}" for path in files if path.exists()]
        if self._requests.first is None:
            found += [f"closing {line}" for line in tail(launcher_log(self._run)).splitlines() if CLOSING in line]
        return frozenset(found)


def read_pid(path: Path) -> int | None:
    """The pid that a rank wrote down, once it has."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
