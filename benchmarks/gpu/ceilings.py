"""What the device can do at best, and what it says of itself: `python ceilings.py cuda` prints one JSON object."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

TRIES = 10


def seconds(work: Callable[[], Any], *, wait: Callable[[], None]) -> float:
    """Of one call, the mean of some after two others."""
    for _ in range(2):
        work()
    wait()
    began = time.monotonic()
    for _ in range(TRIES):
        work()
    wait()
    return (time.monotonic() - began) / TRIES


def main() -> None:
    """Measures bf16 products, copies on the device, and copies from page-locked host memory."""
    device = torch.device(sys.argv[1])
    cuda = device.type == "cuda"
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    side, count = (8192, 2**29) if cuda else (256, 2**16)
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randn(count, device=device)
    target, host = torch.empty_like(source), torch.empty(count // 4, pin_memory=cuda)
    found = {
        "matmul_tflops": 2 * side**3 / seconds(lambda: left @ right, wait=wait) / 1e12,
        "copy_tb_per_second": 2 * source.nbytes / seconds(lambda: target.copy_(source), wait=wait) / 1e12,
        "host_gb_per_second": host.nbytes
        / seconds(lambda: target[: count // 4].copy_(host, non_blocking=True), wait=wait)
        / 1e9,
    }
    if cuda:
        found["total_bytes"] = torch.cuda.get_device_properties(device).total_memory
    print(json.dumps(found))


if __name__ == "__main__":
    main()
