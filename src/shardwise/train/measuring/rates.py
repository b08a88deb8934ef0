"""The dense peak FLOP/s of this rank's device, for MFU."""

from __future__ import annotations

import time

import torch

from shardwise.catalog.gpus import find_gpu
from shardwise.errors import HardwareError
from shardwise.train.precision import type_name


def peak_flops(device: torch.device, dtype: torch.dtype) -> tuple[float | None, str]:
    """Dense FLOP/s of a device in a dtype, and the source of the figure. A GPU's is the catalogue's, or None; a CPU's
    is the best of a few matrix products, measured in under 0.1 s."""
    if device.type == "cuda":
        return _catalogue_peak(torch.cuda.get_device_name(device), type_name(dtype))
    return _measured_peak(dtype), "matrix product of this process, measured at the start"


def _catalogue_peak(name: str, dtype: str) -> tuple[float | None, str]:
    try:
        gpu = find_gpu(name).gpu
    except HardwareError:
        return None, f"{name} is not in the catalogue"
    return gpu.dense_flops.get(dtype), f"catalogue entry {gpu.name}"


def _measured_peak(dtype: torch.dtype, *, size: int = 512, repeats: int = 5) -> float:
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    torch.mm(left, right)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
