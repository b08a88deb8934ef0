"""Runs in a child process what needs torch (a shape, a rehearsal, a difference); prepares data."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from shardwise.errors import ModelError, Problem, ShardwiseError, StoppedError, WorkerFailedError, quoted
from shardwise.launch.failure import how_it_ended
from shardwise.launch.processes.command import require_torch
from shardwise.launch.processes.parent_death import leashed
from shardwise.launch.processes.process_tree import LAUNCH, end_all, send
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.spec.job.strict import from_plain
from shardwise.spec.model.profile import ModelProfile
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.run import RunDirectory

POLL_SECONDS = 0.02
PREPARATION = "shardwise.programs.prepare"


class ReportedError(ShardwiseError):
    """A helper process failed and has printed why; the command line prints nothing more."""

    already_said = True

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def prepare_data(run: RunDirectory, *, quiet: bool = False, brief: bool = False) -> None:
    """Runs data preparation to its end; its stderr is this process's, or if `quiet` shown where it
    fails only; if `brief`, it says nothing but how far it is, and what is wrong. Raises
    ReportedError: it failed, and printed why; WorkerFailedError: it was killed; StoppedError."""
    launch = uuid.uuid4().hex
    with StopRequests() as requests, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            leashed([sys.executable, "-m", PREPARATION, str(run.root), *(["--brief"] if brief else [])]),
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


#: Importing torch and building takes seconds; what takes longer is no model that is trained here.
LIMIT_SECONDS = 300
MODEL_SHAPE = "shardwise.programs.model_shape"


class _HelperFailedError(Exception):
    """The last line that a failed child printed, or how it ended."""


def _output_of(module: str, *arguments: str, text: str = "", limit: float | None = None) -> dict[str, Any]:
    done = subprocess.run(
        leashed([sys.executable, "-m", module, *arguments]),
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit,
        env=_environment(),
    )
    if done.returncode != 0:
        raise _failed(module, done.returncode, printed=done.stderr)
    return json.loads(done.stdout)


def _lines_of(module: str, *, text: str) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+", errors="replace") as printed:
        asked.write(text)
        asked.seek(0)
        streams: dict[str, Any] = {"stdin": asked, "stdout": subprocess.PIPE, "stderr": printed}
        child = subprocess.Popen(leashed([sys.executable, "-m", module]), text=True, env=_environment(), **streams)
        with child:
            try:
                yield from map(json.loads, child.stdout or ())
            except BaseException:  # also where the reader stops early, or is interrupted
                child.kill()
                raise
        if child.returncode != 0:
            printed.seek(0)
            raise _failed(module, child.returncode, printed=printed.read())


def _environment() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}


def _failed(module: str, code: int, *, printed: str) -> _HelperFailedError:
    lines = printed.strip().splitlines()
    return _HelperFailedError(lines[-1] if lines else f"{module} {how_it_ended(code)}")


def built_shape(data: dict[str, Any], *, file: str) -> ModelShape:
    """The shape of the model that transformers builds of a config.json called `file`. Raises
    ModelError: it cannot be built within `LIMIT_SECONDS`, or a part of it is not understood."""
    unknown = f"model_type {quoted(data.get('model_type'))} has no row in the catalogue, and building it"
    try:
        answer = _output_of(MODEL_SHAPE, text=json.dumps({"config": data, "file": file}), limit=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise ModelError.at(file, f"{unknown} took more than {LIMIT_SECONDS:g} s") from None
    except _HelperFailedError as error:
        raise ModelError.at(file, f"{unknown} failed: {error}") from None
    if "shape" not in answer:
        raise ModelError([Problem(where=file, message=reason) for reason in answer["refused"]])
    return ModelShape.from_json(answer["shape"])


def block_profiles(question: dict[str, Any]) -> tuple[ModelProfile, ...] | str:
    """What `shardwise.programs.block_profiles` measures, or why it does not."""
    try:
        answer = _output_of("shardwise.programs.block_profiles", text=json.dumps(question), limit=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT_SECONDS:g} s"
    except _HelperFailedError as error:
        return str(error)
    if "refused" in answer:
        return str(answer["refused"])
    return tuple(from_plain(ModelProfile, one) for one in answer["profiles"])


def sample_rows(folder: Path) -> str | None:
    """Lets `programs.sample_rows` count the rows of a folder's job; why it does not, or None."""
    try:
        _output_of("shardwise.programs.sample_rows", str(folder), limit=LIMIT_SECONDS)
    except (_HelperFailedError, subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return None


def weights_difference(a: Path, b: Path, *, tolerance: float, floor: float = 0.0) -> dict[str, Any]:
    """The JSON object of `shardwise.programs.difference` for two weight folders; a tensor may
    differ by `tolerance` of its norm, or `floor`. Raises WorkerFailedError: one cannot be read."""
    asked = {"a": str(a), "b": str(b), "tolerance": tolerance, "floor": floor}
    try:
        return _output_of("shardwise.programs.difference", json.dumps(asked))
    except _HelperFailedError as error:
        raise WorkerFailedError(f"{a} and {b}: {error}") from None


def rehearsed(question: dict[str, Any], *, begins: Callable[[int], object]) -> list[dict[str, Any]]:
    """What `shardwise.programs.rehearse` answers: for each rank its figures, or `refused`; `begins`
    is called with each rank before its rehearsal. Raises WorkerFailedError: no answer."""
    require_torch()
    answers: list[dict[str, Any]] = []
    try:
        for line in _lines_of("shardwise.programs.rehearse", text=json.dumps(question)):
            if "begins" in line:
                begins(line["begins"])
            else:
                answers = line["ranks"]
    except _HelperFailedError as error:
        raise WorkerFailedError(f"the rehearsal failed: {error}") from None
    return answers


@contextmanager
def _interrupts_are_the_childs() -> Generator[None]:
    """SIGINT, which a terminal sends to both, is left to the child, which would inherit SIG_IGN."""
    try:
        before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    except ValueError:  # only the main thread hears signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_program(
    module: str, arguments: dict[str, Any], *, capture: bool = False, environment: dict[str, str] | None = None
) -> str:
    """Runs a program with the user's stdin, stderr and, unless captured, stdout; returns what was
    captured. Ctrl-C goes to a program whose output is not captured. Raises ReportedError: it
    failed, and has said why; WorkerFailedError: it was killed; KeyboardInterrupt: by Ctrl-C."""
    require_torch()
    command = leashed([sys.executable, "-m", module, json.dumps(arguments)])
    with nullcontext() if capture else _interrupts_are_the_childs():
        done = subprocess.run(
            command, stdout=subprocess.PIPE if capture else None, text=True, check=False, env=environment
        )
    if done.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if done.returncode < 0:
        raise WorkerFailedError(f"{module} {how_it_ended(done.returncode)}")
    if done.returncode > 0:
        raise ReportedError("the reason stands above", exit_code=done.returncode)
    return done.stdout or ""
