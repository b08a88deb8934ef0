"""Rank 0 of a group that something else started: its worker is a child, so that someone is left to say how it went.

The other ranks become workers. Rank 0 shows the progress, names one first cause of a failure, and returns to write the
report; the trainer itself knows no reports.
"""

from __future__ import annotations

import signal
import subprocess
import time
import uuid
from collections.abc import Callable

from shardwise.launch.causes import RankExit, launcher_log
from shardwise.launch.command import WORKER
from shardwise.launch.conclusion import Outcome, conclude
from shardwise.launch.follow import Follower, Update, tell
from shardwise.launch.joined import Place, joined_environment
from shardwise.launch.processes import end_all, send
from shardwise.launch.rank import rank_argv
from shardwise.launch.signals import StopRequests
from shardwise.launch.workers import follow_process, read_pid, start
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import LAUNCH, RunDirectory


def run_first(
    run: RunDirectory,
    place: Place,
    *,
    kind: DeviceKind,
    lock: int,
    module: str = WORKER,
    grace_seconds: float = 3.0,
    on_update: Callable[[Update], None] | None = None,
) -> Outcome:
    """Runs rank 0's worker to its end.

    Args:
        kind: `cpu` hides the machine's GPUs from the worker.
        lock: a descriptor that the worker shall hold open as long as it lives.
        module: run as `python -m MODULE RUN_DIR`.
        grace_seconds: how long the worker may live after another rank failed.
        on_update: called with each new phase and step.

    Raises:
        StoppedError: a signal stopped the run.
        InputError: a worker refused the user's input.
        WorkerFailedError: a worker failed.
    """
    launch = uuid.uuid4().hex
    with StopRequests() as requests:
        follower = Follower(run)
        worker = start(
            rank_argv(run, module=module),
            environment={**joined_environment(kind), LAUNCH: launch},
            log=launcher_log(run),
            lock=lock,
            # Whatever started the ranks ends them by SIGKILL at last, and the worker must not outlive its rank.
            on_our_end=signal.SIGKILL,
        )
        watch = _Watch(run, worker=worker, requests=requests, grace_seconds=grace_seconds)
        try:
            follow_process(worker, follower, requests=requests, look=watch.look, on_update=on_update)
        finally:
            end_all(launch)
            code = worker.wait()
        tell(follower.updates(), on_update)
        ended = [] if watch.ended_it else [RankExit(rank=0, code=code, pid=worker.pid)]
        return conclude(run, code=code, exits=ended, requests=requests, processes=place.size, on_update=on_update)


class _Watch:
    """What rank 0 does between two looks at its worker."""

    def __init__(
        self, run: RunDirectory, *, worker: subprocess.Popen[bytes], requests: StopRequests, grace_seconds: float
    ) -> None:
        self.ended_it = False
        self._run = run
        self._worker = worker
        self._requests = requests
        self._grace_seconds = grace_seconds
        self._told = False
        self._deadline = float("inf")

    def look(self) -> None:
        """Passes a request on once the worker listens to it, and ends a worker that waits for a rank that failed."""
        asked = self._requests.first
        if asked is not None and not self._told and read_pid(self._run.rank_pid(0)) == self._worker.pid:
            self._told = send(self._worker.pid, asked)
        if self._deadline == float("inf") and any(self._run.logs.glob("rank_*.failure.json")):
            self._deadline = time.monotonic() + self._grace_seconds
        if time.monotonic() > self._deadline and not self.ended_it:
            self.ended_it = send(self._worker.pid, signal.SIGKILL)
