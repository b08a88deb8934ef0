"""How a rank ends, and which rows it refuses before it begins."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.stated import stretched_positions
from shardwise.errors import HardwareError, UnsupportedError
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train import worker
from shardwise.train.build import _check_positions
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.signals import StopFlag
from shardwise.train.watching.watchdog import Watch
from tests.dist.worlds import said_by
from tests.marks import first
from tests.unit.plan.asking import shape
from tests.warm.shim import KIND

#: A worker inside which something ends the program.
LEAVING = """
import sys
from pathlib import Path
from shardwise.spec.run import RunDirectory
from shardwise.train import worker
def leave(*_, **__): sys.exit({status})
worker._run = leave
sys.exit(worker.run_rank(RunDirectory(Path({folder!r}))))
"""


@pytest.mark.parametrize(("status", "words"), first(1, [("0", "0"), ("3", "3"), ("'no login'", "no login")]))
def test_a_rank_that_something_ended_by_exit_says_so(tmp_path, status, words, monkeypatch) -> None:
    monkeypatch.setenv(KIND, "torch")
    program = LEAVING.format(status=status, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 1
    failure = read_json(RunDirectory(tmp_path).rank_failure(0))
    assert failure["message"] == f"something called exit({words}) inside the training process"
    assert failure["error"] == "SystemExit"


def test_a_rank_looks_for_the_plan_s_devices_before_it_meets_the_others(tmp_path, monkeypatch) -> None:
    job = job_from_data({"model": "m", "data": {"path": "rows.jsonl"}})
    chosen = Execution(layout=Layout(), micro_batch_size=1, gradient_accumulation_steps=1)
    monkeypatch.setattr(worker, "read_request", lambda _: (job, chosen, parse_hardware("1x H100-SXM"), None, None))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    journal = Journal(run=RunDirectory(tmp_path), rank=0)
    with pytest.raises(HardwareError, match="the plan is for 1x H100-SXM, and torch sees no GPU here"):
        worker._run(journal.run, journal=journal, stop=StopFlag(), watch=Watch(journal, StopFlag()))
    assert not torch.distributed.is_initialized()


def test_a_row_beyond_the_positions_is_refused() -> None:
    model = shape()
    most = model.max_position_embeddings
    as_long, longer = (cast(Any, SimpleNamespace(longest_document=tokens)) for tokens in (most, most + 1))
    _check_positions(as_long, model)
    said = said_by(UnsupportedError, _check_positions, longer, model)
    assert f"a row has {most + 1:,} tokens, and the model has {most:,} positions" in said
    assert "add rope_scaling to the job" in said


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaling_reaches_its_factor_times_the_original(key) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert stretched_positions({key: yarn}) == 131072
    assert stretched_positions({key: {"rope_type": "default", "rope_theta": 1e6}}) == 0
