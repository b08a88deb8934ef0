"""Asks the torch wing how far two results lie apart: a short child process, because nothing here can read a tensor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from shardwise.errors import WorkerFailedError
from shardwise.launch.causes import how_it_ended
from shardwise.launch.leash import leashed

DIFFERENCE = "shardwise.train.difference"


def weights_apart(a: Path, b: Path, *, tolerance: float, floor: float = 0.0) -> dict[str, Any]:
    """The JSON object of `shardwise.train.difference` for two folders with weights; a tensor may differ by `tolerance`
    of its norm, or by `floor`. Raises WorkerFailedError: one of them cannot be read."""
    argv = [sys.executable, "-m", DIFFERENCE, str(a), str(b), "--tolerance", repr(tolerance), "--floor", repr(floor)]
    done = subprocess.run(
        leashed(argv),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        how = said[-1] if said else f"{DIFFERENCE} {how_it_ended(done.returncode)}"
        raise WorkerFailedError(f"{a} and {b}: {how}")
    found: Any = json.loads(done.stdout)
    return cast(dict[str, Any], found)
