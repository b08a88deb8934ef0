"""A plan for GPUs is trained on GPUs, and one for processors on processors, or not at all."""

from __future__ import annotations

import pytest
import torch

from shardwise.catalog.gpus import parse_hardware
from shardwise.errors import HardwareError
from shardwise.train.device import check_device

GPUS, PROCESSORS = parse_hardware("2x H100-SXM"), parse_hardware("cpu:2")


def _see(monkeypatch: pytest.MonkeyPatch, *, gpu: bool, build: str | None = None, fault: str = "") -> None:
    """A torch of a build, which sees a GPU or, where it looks for one, says why not."""

    def look() -> None:
        raise RuntimeError(fault)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "init", look)
    monkeypatch.setattr(torch.version, "cuda", build)


def test_a_plan_for_gpus_is_not_trained_by_a_torch_for_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    _see(monkeypatch, gpu=False)
    with pytest.raises(HardwareError) as caught:
        check_device(GPUS)
    assert str(caught.value) == (
        f"the plan is for 2x H100-SXM, and torch sees no GPU here: torch {torch.__version__} is the build for "
        "processors. Install the CUDA build (see https://pytorch.org/get-started/locally/); `shardwise doctor` shows "
        "what is here, and hardware: cpu:N trains on N processes without GPUs"
    )


def test_what_torch_says_of_a_driver_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    _see(monkeypatch, gpu=False, build="12.8", fault="The NVIDIA driver on your system is too old (found 11040).")
    with pytest.raises(HardwareError) as caught:
        check_device(GPUS)
    assert (
        " says: The NVIDIA driver on your system is too old (found 11040). Install a build for this machine's driver, "
        "or a newer driver (see https://pytorch.org/get-started/locally/); look at CUDA_VISIBLE_DEVICES; "
    ) in str(caught.value)


def test_a_plan_for_processors_is_not_trained_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    _see(monkeypatch, gpu=True)
    with pytest.raises(HardwareError, match=r"for cpu:2, processors, and torch sees a GPU, .* hide it by CUDA_VIS"):
        check_device(PROCESSORS)


@pytest.mark.parametrize("gpu", [True, False])
def test_what_was_planned_for_and_is_seen_is_trained_on(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    _see(monkeypatch, gpu=gpu)
    check_device(GPUS if gpu else PROCESSORS)
