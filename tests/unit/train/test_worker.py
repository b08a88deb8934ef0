"""What a rank refuses before it begins, devices, memory or rows, and how it ends."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from shardwise.catalog.stated import stretched_positions
from shardwise.errors import HardwareError, UnsupportedError
from shardwise.spec.job.file import job_from_data
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train import device, worker
from shardwise.train.build import _check_positions
from shardwise.train.device import check_device, check_memory
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.watchdog import StopFlag, Watch
from shardwise.units import GIB
from tests.marks import first
from tests.refusals import said_by
from tests.unit.fakes import nvidia_smi
from tests.unit.plan.asking import Execution, Layout, parse_hardware, shape
from tests.unit.train.test_out_of_memory import FORECAST
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
GPUS, PROCESSORS = parse_hardware("2x H100-SXM"), parse_hardware("cpu:2")
INSTALL = "see https://pytorch.org/get-started/locally/"
TOO_OLD = "The NVIDIA driver on your system is too old (found 11040)."
LARGE = replace(FORECAST, peak_bytes=70 * GIB, peak_low_bytes=68 * GIB)


@pytest.mark.parametrize(("status", "words"), first(1, [("0", "0"), ("3", "3"), ("'no login'", "no login")]))
def test_a_rank_that_something_ended_by_exit_says_so(tmp_path, status, words, monkeypatch) -> None:
    monkeypatch.setenv(KIND, "torch")
    program = LEAVING.format(status=status, folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 1
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


def _see(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, build: str | None = None, fault: str = "") -> None:
    """A torch of a build, which sees a GPU or, where it looks for one, says why not."""

    def look() -> None:
        raise RuntimeError(fault)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "init", look)
    monkeypatch.setattr(torch.version, "cuda", build)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (None, f"is the build for processors. Install the CUDA build ({INSTALL})"),
        (
            "12.8",
            f"says: {TOO_OLD} Install a build for this machine's driver, or a newer driver ({INSTALL}); look at "
            "CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_a_plan_for_gpus_is_not_trained_where_torch_sees_none(build, why, monkeypatch) -> None:
    _see(monkeypatch, gpu=False, build=build, fault=TOO_OLD)
    assert said_by(HardwareError, check_device, GPUS) == (
        f"the plan is for 2x H100-SXM, and torch sees no GPU here: torch {torch.__version__} {why}; `shardwise doctor` "
        "shows what is here, and hardware: cpu:N trains on N processes without GPUs"
    )


def test_a_plan_for_processors_is_not_trained_on_a_gpu(monkeypatch) -> None:
    _see(monkeypatch, gpu=True)
    with pytest.raises(HardwareError, match=r"for cpu:2, processors, and torch sees a GPU, .* hide it by CUDA_VIS"):
        check_device(PROCESSORS)


def _gpu(monkeypatch: pytest.MonkeyPatch, *, total: int, free: int) -> None:
    """A torch whose GPU has so much memory, of which so much is free."""
    monkeypatch.setattr(device, "PATIENCE_SECONDS", 0.0)
    properties = SimpleNamespace(name="NVIDIA H100", uuid="aaa")
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))


def test_a_gpu_on_which_others_have_come_is_refused_before_weights_are_loaded(tmp_path, monkeypatch) -> None:
    nvidia_smi(tmp_path, gpus="", holders="GPU-aaa, 1234, 51200, /usr/bin/python\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    _gpu(monkeypatch, total=79 * GIB, free=29 * GIB - GPUS.gpu.context_bytes)
    assert said_by(HardwareError, check_memory, GPUS, LARGE, torch.device("cuda", 0)) == (
        "NVIDIA H100 (cuda:0) has 29.0 GiB of 79.0 GiB free, and the plan needs 70.0 GiB at its peak; free the memory, "
        "or start again: what is free then is planned for; held by python (pid 1234)"
    )


def test_memory_of_a_gpu_is_what_the_plan_needs_or_is_waited_for(monkeypatch) -> None:
    tried = replace(FORECAST, peak_bytes=99 * GIB, peak_high_bytes=101 * GIB)
    _gpu(monkeypatch, total=79 * GIB, free=78 * GIB)
    check_memory(GPUS, tried, torch.device("cuda", 0))
    _gpu(monkeypatch, total=79 * GIB, free=70 * GIB)
    with pytest.raises(HardwareError, match=r"of 79\.0 GiB free, and the plan needs 77\.4 GiB at its peak; free"):
        check_memory(GPUS, tried, torch.device("cuda", 0))
    _gpu(monkeypatch, total=79 * GIB, free=0)
    monkeypatch.setattr(device, "PATIENCE_SECONDS", 60.0)
    answers = [(29 * GIB, 79 * GIB), (78 * GIB, 79 * GIB)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: answers.pop(0))
    check_memory(GPUS, LARGE, torch.device("cuda", 0))
    assert answers == []
    _gpu(monkeypatch, total=39 * GIB, free=39 * GIB)
    assert said_by(HardwareError, check_memory, GPUS, LARGE, torch.device("cuda", 1)) == (
        "NVIDIA H100 (cuda:1) has 39.0 GiB, and the plan counts on 79.0 GiB; plan again on this machine, with hardware "
        "left out"
    )
