"""A plan for GPUs is trained on GPUs, and one for processors on processors, or not at all."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from shardwise.catalog.gpus import parse_hardware
from shardwise.errors import HardwareError
from shardwise.train import device
from shardwise.train.device import check_device, check_memory
from shardwise.units import GIB
from tests.unit.fakes import nvidia_smi
from tests.unit.train.test_out_of_memory import FORECAST

GPUS, PROCESSORS = parse_hardware("2x H100-SXM"), parse_hardware("cpu:2")


def _see(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, build: str | None = None, fault: str = "") -> None:
    """A torch of a build, which sees a GPU or, where it looks for one, says why not."""

    def look() -> None:
        raise RuntimeError(fault)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "init", look)
    monkeypatch.setattr(torch.version, "cuda", build)


INSTALL = "see https://pytorch.org/get-started/locally/"
NEWER = f"Install a build for this machine's driver, or a newer driver ({INSTALL})"
TOO_OLD = "The NVIDIA driver on your system is too old (found 11040)."


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (None, f"is the build for processors. Install the CUDA build ({INSTALL})"),
        ("12.8", f"says: {TOO_OLD} {NEWER}; look at CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_plan_for_gpus_is_not_trained_where_torch_sees_none(build, why, monkeypatch) -> None:
    _see(monkeypatch, gpu=False, build=build, fault=TOO_OLD)
    with pytest.raises(HardwareError) as caught:
        check_device(GPUS)
    assert str(caught.value) == (
        f"the plan is for 2x H100-SXM, and torch sees no GPU here: torch {torch.__version__} {why}; `shardwise doctor` "
        "shows what is here, and hardware: cpu:N trains on N processes without GPUs"
    )


def test_a_plan_for_processors_is_not_trained_on_a_gpu(monkeypatch) -> None:
    _see(monkeypatch, gpu=True)
    with pytest.raises(HardwareError, match=r"for cpu:2, processors, and torch sees a GPU, .* hide it by CUDA_VIS"):
        check_device(PROCESSORS)


LARGE = replace(FORECAST, peak_bytes=70 * GIB, peak_low_bytes=68 * GIB)


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
    with pytest.raises(HardwareError) as caught:
        check_memory(GPUS, LARGE, torch.device("cuda", 0))
    assert str(caught.value) == (
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
    with pytest.raises(HardwareError) as caught:
        check_memory(GPUS, LARGE, torch.device("cuda", 1))
    assert str(caught.value) == (
        "NVIDIA H100 (cuda:1) has 39.0 GiB, and the plan counts on 79.0 GiB; plan again on this machine, with hardware "
        "left out"
    )
