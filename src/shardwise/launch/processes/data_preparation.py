"""Runs data preparation: one helper process whose messages go straight to the user's terminal."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid

from shardwise.errors import ShardwiseError, StoppedError, WorkerFailedError
from shardwise.launch.failure import how_it_ended
from shardwise.launch.processes.command import PREPARATION
from shardwise.launch.processes.parent_death import leashed
from shardwise.launch.processes.process_tree import LAUNCH, end_all, send
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.spec.run import RunDirectory

POLL_SECONDS = 0.02


class ReportedError(ShardwiseError):
    """A helper process failed and has printed why; the command line prints nothing more."""

    already_said = True

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def prepare_data(run: RunDirectory, *, module: str = PREPARATION, quiet: bool = False, brief: bool = False) -> None:
    """Runs data preparation to its end; its stderr is this process's, or if `quiet` shown where it
    fails only; if `brief`, it says nothing but how far it is, and what is wrong. Raises
    ReportedError: it failed, and printed why; WorkerFailedError: it was killed; StoppedError."""
    launch = uuid.uuid4().hex
    with StopRequests() as requests, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            leashed([sys.executable, "-m", module, str(run.root), *(["--brief"] if brief else [])]),
            env={**os.environ, LAUNCH: launch},
            stdin=subprocess.DEVNULL,
            stderr=said if quiet else None,
            start_new_session=True,
        )
        try:
            while child.poll() is None and requests.first is None:
                requests.wait(POLL_SECONDS)
            # SIGTERM whatever was asked: to Python, SIGINT means a traceback.
            if child.poll() is None and send(child.pid, signal.SIGTERM):
                requests.wait(1.0)
        finally:
            end_all(launch)
            code = child.wait()
        if code != 0 and requests.first is None:
            said.seek(0)
            shutil.copyfileobj(said, sys.stderr)
    if requests.first is not None and code != 0:
        message = "stopped while preparing the data; the same command starts again"
        raise StoppedError(message, exit_code=128 + requests.first)
    if code < 0:
        raise WorkerFailedError(f"data preparation {how_it_ended(code)}")
    if code != 0:
        raise ReportedError("the data cannot be prepared; the reason stands above", exit_code=code)
