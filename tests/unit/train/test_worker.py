"""How a rank ends: whatever ends it, the cause is written down for the launcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.spec.run import RunDirectory, read_json
from tests.marks import first

#: A worker inside which something ends the program.
LEAVING = """
import sys
from shardwise.train import worker
def leave(*_, **__): sys.exit({status})
worker._run = leave
sys.exit(worker.main([{folder!r}]))
"""


@pytest.mark.parametrize(
    ("status", "words"), first(1, [("0", "exit(0)"), ("3", "exit(3)"), ("'no login'", "exit(no login)")])
)
def test_a_rank_that_something_ended_by_exit_says_so(tmp_path: Path, status: str, words: str) -> None:
    program = LEAVING.format(status=status, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 1
    failure = read_json(RunDirectory(tmp_path).rank_failure(0))
    assert failure is not None
    assert failure["message"] == f"something called {words} inside the training process"
    assert failure["error"] == "SystemExit"
