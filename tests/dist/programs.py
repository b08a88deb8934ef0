"""Programs that tests start as users do, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.warm.shim import KIND

#: Before a program, for two processes of it.
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def start(*words: object, folder=None, errors=subprocess.STDOUT, **environment: str) -> subprocess.Popen[str]:
    """Starts a program of Python; what it says is read by `end`."""
    argv = [sys.executable, *map(str, words)]
    env = {**os.environ, "COLUMNS": "400", KIND: "torch", **environment}
    return subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)


def end(started: subprocess.Popen[str], *, code: int = 0) -> str:
    """What a program said, once it has ended with that code."""
    said, errors = started.communicate(timeout=240)
    assert started.returncode == code, said + (errors or "")
    return said


def printed(*words: object, folder: Path | None = None) -> str:
    """What a program prints that ends well, without its errors."""
    return end(start(*words, folder=folder, errors=subprocess.PIPE))
