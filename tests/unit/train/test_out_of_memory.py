"""A rank without memory says what was planned and measured, what is larger, and what to set."""

import os
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shardwise import api
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate, MemoryForecast, RankMemory, TimeForecast
from shardwise.spec.run import EVALUATION, RunDirectory, write_json
from shardwise.train.device import Measured, OutOfMemoryError, _measure, explained, is_out_of_memory, sentence
from shardwise.train.measuring.memory import Held, MemoryMeter
from shardwise.units import GIB
from tests.unit.fakes import nvidia_smi

JOB = job_from_data({"model": "m", "data": {"path": "rows.jsonl"}})
CHOSEN = Execution(layout=Layout(dp_replicate=2), micro_batch_size=4, gradient_accumulation_steps=1)
PARTS = {"weights": 4 * GIB, "optimizer": 8 * GIB, "activations": 7 * GIB, "context": GIB}
RANKS = (RankMemory(ranks=(0, 1), peak_bytes=20 * GIB, parts=PARTS),)
WITHIN = {"capacity_bytes": 79 * GIB, "peak_low_bytes": 19 * GIB, "peak_high_bytes": 22 * GIB}
PEAKS: dict[str, Any] = {"peak_bytes": 20 * GIB, "peak_reserved_bytes": 21 * GIB, **WITHIN}
FORECAST = MemoryForecast(**PEAKS, peak_instant="backward of layer 31", ranks=RANKS)
TIME = TimeForecast(step_seconds=1, tokens_per_second=1, mfu=0, gpu_utilization=0, compute_utilization=0)
HELD = Held(weights=4 * GIB, gradients=0, optimizer=8 * GIB)
MEASURED = Measured(used=26 * GIB, reserved=27 * GIB, asked=2 * GIB, total=79 * GIB, by_others=0, held=HELD)


def _said(measured: Measured, **changes: Any) -> str:
    candidate = Candidate(execution=replace(CHOSEN, **changes), fits=True, memory=FORECAST, time=TIME)
    return sentence(JOB, candidate, rank=1, measured=measured)


def test_a_gpu_says_planned_beside_measured_and_the_next_setting() -> None:
    assert _said(MEASURED) == (
        "out of memory: planned 20.0 GiB at the peak (backward of layer 31) of 79.0 GiB for each GPU, measured 26.0 "
        "GiB allocated and 27.0 GiB reserved when 2.0 GiB more were asked for, on a GPU with 79.0 GiB of which others "
        "hold 0 B; larger than planned: gradients, activations and what passes, 16.0 GiB for 7.0 GiB; next: --set "
        "train.micro_batch_size=2 --set layout=ddp"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"by_others": 50 * GIB, "who": "python (pid 1234)"},
            "of which others hold 50.0 GiB (python (pid 1234)); others hold 50.0 GiB more than when it was planned, "
            "and the same command plans around them; next: --set",
        ),
        ({"used": 12 * GIB, "held": replace(HELD, weights=9 * GIB)}, "larger than planned: weights, 9.0 GiB for 4.0"),
        ({"used": 18 * GIB, "asked": None}, "reserved, on a GPU with 79.0 GiB of which others hold 0 B; no part that"),
        ({"held": None}, "the model was not built yet"),
        (
            {"reserved": None, "total": 64 * GIB, "by_others": 30 * GIB},
            "for each process, measured 26.0 GiB resident when 2.0 GiB more were asked for, on a machine with 64.0 GiB "
            "of which others hold 30.0 GiB; no part that can be measured is larger than planned",
        ),
    ],
)
def test_what_is_larger_than_planned_is_named(changes, said) -> None:
    assert said in _said(replace(MEASURED, **changes))


ONE: dict[str, Any] = {"micro_batch_size": 1}
FULL = {**ONE, "gradient_checkpointing": "full"}
OFFLOADED = {**ONE, "gradient_checkpointing": "offloaded"}
ON_HOST = {**OFFLOADED, "offload": "optimizer"}
ZERO1 = Layout(dp_shard=2, zero_stage=1, reshard_after_forward=False)


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"micro_batch_size": 2, "gradient_checkpointing": "selective"}, "gradient_checkpointing=selective layout=ddp"),
        (ONE, "gradient_checkpointing=full layout=ddp"),
        ({**FULL, "loss": "full"}, "gradient_checkpointing=full loss=chunked layout=ddp"),
        (FULL, "gradient_checkpointing=offloaded layout=ddp"),
        (OFFLOADED, "gradient_checkpointing=offloaded offload=optimizer layout=ddp"),
        (ON_HOST, "gradient_checkpointing=offloaded offload=parameters layout=ddp"),
        ({**ON_HOST, "offload": "parameters"}, "gradient_checkpointing=offloaded offload=parameters layout=fsdp"),
        # What is not trained is not advised: weights from the host under zero1.
        ({**ON_HOST, "layout": ZERO1}, "gradient_checkpointing=offloaded offload=optimizer layout=fsdp"),
    ],
)
def test_the_settings_that_need_less_come_in_their_order_and_keep_what_saves_already(changes, settings) -> None:
    line = "".join(f" --set {'' if one.startswith('layout') else 'train.'}{one}" for one in settings.split())
    assert _said(MEASURED, **changes).endswith(f"next: --set train.micro_batch_size=1{line}")


def test_where_no_setting_helps_hardware_does_and_a_process_has_no_host_to_offload_to() -> None:
    last = _said(MEASURED, **{**ON_HOST, "offload": "parameters"}, layout=Layout())
    assert last.endswith("next: more GPUs, or larger ones")
    assert _said(replace(MEASURED, reserved=None), **OFFLOADED).endswith("checkpointing=offloaded --set layout=fsdp")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"), True),
        (MemoryError(), True),
        (RuntimeError("Connection closed by peer"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_which_errors_are_those_of_an_allocator(error, expected) -> None:
    assert is_out_of_memory(error) is expected


def test_what_cannot_be_explained_and_what_is_something_else_stay_as_they_are(tmp_path) -> None:
    with pytest.raises(RuntimeError) as caught:  # what the CPU's allocator says for real
        torch.empty(2**60, dtype=torch.uint8)
    assert _measure(caught.value, holding=None).asked == 2**60
    assert is_out_of_memory(caught.value)
    for error in (caught.value, ValueError("no")):
        assert explained(error, run=RunDirectory(tmp_path), rank=0, holding=None) is error


def _say(monkeypatch: pytest.MonkeyPatch, **figures: Callable[..., Any]) -> None:
    """What torch says of a GPU."""
    for name, figure in figures.items():
        monkeypatch.setattr(torch.cuda, name, figure)


def test_a_gpu_s_peak_is_that_of_training_and_reserved_and_used_stand_beside_it(monkeypatch) -> None:
    peaks, resets = [90], list[object]()
    _say(monkeypatch, max_memory_allocated=lambda _: peaks[-1], reset_peak_memory_stats=resets.append)
    _say(monkeypatch, max_memory_reserved=lambda _: 70, mem_get_info=lambda _: (20, 100))
    _say(monkeypatch, memory_stats=lambda _: {"num_alloc_retries": 3})
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight])
    meter = MemoryMeter(torch.device("cuda", 0), parameters=[weight], optimizer=optimizer)
    meter.begin()
    peaks.append(60)
    assert resets == [torch.device("cuda", 0)]
    assert meter.peak_bytes == 60
    known = {"loading_peak_bytes": 90, "peak_reserved_bytes": 70, "device_used_bytes": 80, "allocation_retries": 3}
    assert meter.device_figures() == known
    with meter.watch([24, 16, 8], trained=[20, 3, 7]):
        optimizer.register_step_pre_hook(lambda *_: peaks.append(50))
        optimizer.step()
        peaks.append(10)
    with meter.during(EVALUATION):
        peaks.append(30)
    assert meter.phase_peaks == {"loading": 90, "forward_backward": 60, "optimizer_step": 50, "evaluation": 30}
    assert (meter.peak_bytes, meter.reserved_bytes, meter.rows_seen) == (60, 70, [24, 16])
    assert meter.trained_seen == [20, 7]
    on_cpu = MemoryMeter(torch.device("cpu"), parameters=[weight], optimizer=torch.optim.SGD([weight]))
    on_cpu.begin()
    assert on_cpu.device_figures() == {}


class _Passing(torch.optim.SGD):
    """Takes 8 MB while it steps."""

    def step(self, closure: Any = None) -> Any:
        torch.empty(2_000_000)
        return super().step(closure)


def test_allocations_on_the_cpu_are_told_apart_by_the_optimizer_s_step() -> None:
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = _Passing([weight])
    meter = MemoryMeter(torch.device("cpu"), parameters=[weight], optimizer=optimizer)
    meter.begin()
    for step, length in enumerate((8, 16, 32)):
        with meter.watch([length]):
            torch.empty(1_000_000 if step < 2 else 4_000_000)
            optimizer.step()
    assert meter.phase_peaks == {"forward_backward": 4000 + 4_000_000, "optimizer_step": 4000 + 8_000_000}
    assert (meter.peak_bytes, meter.reserved_bytes) == (8_004_000, 0)
    assert meter.rows_seen == [16, 0], "of the two steps that are measured"


def test_a_gpu_is_measured_with_what_others_hold_of_it(tmp_path, monkeypatch) -> None:
    run = RunDirectory(tmp_path / "run")
    made = api.plan(JOB, overrides=["model=SmolLM2-135M", "hardware=1x H100-SXM", "data.num_rows=8"])
    write_json(run.resolved, JOB.to_json())
    write_json(run.plan, made.to_json())
    nvidia_smi(tmp_path, gpus="", holders="GPU-aaa, 1234, 51200, /usr/bin/python\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    _say(monkeypatch, is_available=lambda: True, device_count=lambda: 1, mem_get_info=lambda _: (0, 79 * GIB))
    _say(monkeypatch, memory_reserved=lambda _: 28 * GIB, max_memory_reserved=lambda _: 28 * GIB)
    _say(monkeypatch, max_memory_allocated=lambda _: 27 * GIB)
    _say(monkeypatch, get_device_properties=lambda _: SimpleNamespace(uuid="aaa"))
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB.")
    error = explained(short, run=run, rank=0, holding=None)
    assert isinstance(error, OutOfMemoryError)
    assert (
        "measured 27.0 GiB allocated and 28.0 GiB reserved when 0.5 GiB more were asked for, on a GPU with 79.0 GiB of "
        "which others hold 50.1 GiB (python (pid 1234)); others hold 50.3 GiB more than when it was planned"
    ) in str(error)
