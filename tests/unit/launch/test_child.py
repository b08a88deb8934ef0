"""The processes that prepare data and build a model: how they end, and what is said of it."""

import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest

from shardwise.errors import ModelError
from shardwise.launch.processes import helpers
from shardwise.launch.processes.helpers import ReportedError, built_shape, prepare_data
from tests.marks import first
from tests.unit.fakes import processes_of, wait_until

LAUNCHER = """
import sys
from pathlib import Path
from shardwise.errors import ShardwiseError
from shardwise.launch.processes import helpers
from shardwise.spec.run import RunDirectory
helpers.PREPARATION = sys.argv[2]
try:
    helpers.prepare_data(RunDirectory(Path(sys.argv[1])))
except ShardwiseError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(("number", "code"), first(1, [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ci=1))
@pytest.mark.parametrize("deaf", [False, True], ids=["that listens", "that is deaf"])
def test_a_signal_ends_preparation_and_its_children_without_a_traceback(run, worker, number, code, *, deaf) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
    # No shell: one that outlives its child for a moment says "Killed" on stderr.
    sleeper = "[sys.executable, '-c', 'import time; time.sleep(600)', str(run.root)]"
    body += f"import subprocess; subprocess.Popen({sleeper})\n"
    module = worker(body + "(run.root / 'began').touch()\ntime.sleep(600)", "slow_prepare")
    argv = [sys.executable, "-c", LAUNCHER, str(run.root), module]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        wait_until((run.root / "began").exists)
        launcher.send_signal(number)
        out, err = launcher.communicate(timeout=20)
    assert launcher.returncode == code
    assert out == "stopped while preparing the data; the same command starts again\n"
    assert err == ""
    assert processes_of(run) == []


def test_preparation_ends_with_a_launcher_that_is_killed(run, worker) -> None:
    module = worker("(run.root / 'began').touch()\ntime.sleep(600)", "slow_prepare")
    with subprocess.Popen([sys.executable, "-c", LAUNCHER, str(run.root), module]) as launcher:
        wait_until((run.root / "began").exists)
        launcher.kill()
        wait_until(lambda: processes_of(run) == [], seconds=5)


@pytest.mark.parametrize(("status", "said"), [(0, ""), (3, "rows.jsonl:7: no columns\n")])
def test_a_quiet_preparation_speaks_where_it_fails(run, worker, capfd, status, said) -> None:
    worker(f"print('rows.jsonl:7: no columns', file=sys.stderr)\nsys.exit({status})", "some_prepare")
    with pytest.raises(ReportedError) if status else nullcontext():
        prepare_data(run, quiet=True)
    assert capfd.readouterr().err == said


REFUSES = "json.dump({'refused': [json.load(sys.stdin)['file'] + ' is odd']}, sys.stdout)"


@pytest.mark.parametrize(
    ("build", "limit", "said"),
    [
        (f"import json, sys; {REFUSES}", 60, r"^m/config\.json: m/config\.json is odd$"),
        ("raise MemoryError('no room')", 60, "'stranger' has no row .*, and building it failed: MemoryError: no room"),
        ("import time; time.sleep(60)", 0.5, "has no row in the catalogue, and building it took more than 0.5 s"),
    ],
)
def test_a_build_that_fails_says_why_and_one_without_an_end_is_ended(build, limit, said, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(helpers, "MODEL_SHAPE", "standin")
    monkeypatch.setattr(helpers, "LIMIT_SECONDS", limit)
    (tmp_path / "standin.py").write_text(build)
    with pytest.raises(ModelError, match=said):
        built_shape({"model_type": "stranger"}, file="m/config.json")
