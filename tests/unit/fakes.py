"""Small programs in the trainer's place: they keep its promises about files, without torch."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shardwise.launch.processes import command, helpers
from shardwise.launch.processes.process_tree import PROC
from shardwise.spec.run import LAUNCH, RunDirectory

PREAMBLE = """
import json, os, signal, sys, time
from pathlib import Path
from shardwise.spec.begin import wait_to_begin
from shardwise.spec.run import RunDirectory, announce, append_line, write_json, write_text

wait_to_begin()
run, rank = RunDirectory(Path(sys.argv[1])), int(os.environ.get("RANK", "0"))
stopped = []

def listen():
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    write_text(run.logs / f"rank_{rank}.pid", f"{os.getpid()}\\n")

def fail(message, **detail):
    cause = {"time": time.time(), "rank": rank, "phase": "training (step 17)", "error": "ValueError"}
    write_json(run.rank_failure(rank), {**cause, "message": message, "file": "loop.py", "line": 88, **detail})
    sys.exit(1)

def outcome(name, **detail):
    if rank == 0:
        write_json(run.logs / "outcome.json", {"outcome": name, "signal": None, "step": 3, **detail})

def wait_for(path):
    while not path.exists():
        time.sleep(0.02)
"""

Maker = Callable[..., str]


def module_maker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """Makes a module of a program's body in a folder, which then runs in the place of Shardwise's
    own, of preparation where it is named so; says its name."""
    folder.mkdir(exist_ok=True)

    def make(body: str, name: str = "fake_worker") -> str:
        (folder / f"{name}.py").write_text(PREAMBLE + body, encoding="utf-8")
        place, constant = (helpers, "PREPARATION") if name.endswith("prepare") else (command, "WORKER")
        monkeypatch.setattr(place, constant, name)
        return name

    return make


def nvidia_smi(folder: Path, *, gpus: str, holders: str = "", listed: str = "", code: int = 0) -> None:
    """Makes a program `nvidia-smi` in a folder.

    Args:
        gpus, holders: its lines for the queries of GPUs and of the processes that hold memory.
        listed: what it says to `-L`.
    """
    answers = {"--query-gpu": gpus, "--query-compute-apps": holders, "-L": listed}
    program = folder / "nvidia-smi"
    answer = f"sys.stdout.write({answers!r}[sys.argv[1].partition('=')[0]])"
    program.write_text(f"#!{sys.executable}\nimport sys\n{answer}\nsys.exit({code})\n", encoding="utf-8")
    program.chmod(0o755)


def processes_of(run: RunDirectory) -> list[int]:
    """Living processes that were started for this run directory, by whichever launch."""
    return [pid for pid in launched() if str(run.root).encode() in _read(pid, "cmdline")]


def launched() -> list[int]:
    pids = [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and f"{LAUNCH}=".encode() in _read(pid, "environ")]


def _read(pid: int, name: str) -> bytes:
    """What is told of a process; nothing of one that has ended, or is another user's."""
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""


def wait_until(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
