"""Many rows cost disk, not memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.units import MIB
from tests.unit.data.helpers import run_directory, write_jsonl

#: Prepares, and prints in KiB: the peak right after the imports, the peak at the end, and the largest child's.
MEASURE = """
import resource, sys
from pathlib import Path
import shardwise.data.prepare.ingest
from shardwise.data.prepare.prepare import prepare
from shardwise.spec.run import RunDirectory
peak = lambda who: resource.getrusage(who).ru_maxrss
before = peak(resource.RUSAGE_SELF)
prepare(RunDirectory(Path(sys.argv[1])))
print(before, peak(resource.RUSAGE_SELF), peak(resource.RUSAGE_CHILDREN))
"""


def measure(folder: Path, model: Path, *, num_rows: int) -> tuple[int, int]:
    """(bytes the parent grew by, peak of its largest worker in bytes)."""
    rows = ({"question": f"what is {number}?", "answer": f"it is {number}"} for number in range(num_rows))
    data = {"path": str(write_jsonl(folder / "rows.jsonl", rows)), "packing": True}
    run = run_directory(folder / f"run-{num_rows}", model=model, data=data)
    command = [sys.executable, "-c", MEASURE, str(run.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after, child = map(int, done.stdout.split())
    return (after - before) * 1024, child * 1024


@pytest.mark.slow
def test_ten_times_the_rows_need_a_few_bytes_more_per_row(tmp_path: Path, plain_model: Path) -> None:
    small, small_worker = measure(tmp_path, plain_model, num_rows=10_000)
    large, large_worker = measure(tmp_path, plain_model, num_rows=100_000)
    # A row's facts are 13 bytes and a few copies; as a Python dict of two strings a row is about 400.
    assert (large - small) / 90_000 < 200
    assert large_worker - small_worker < 150 * MIB
