"""What lets training go on while a checkpoint is written: copies in host memory, and a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

import torch

T = TypeVar("T")


class HostCopies:
    """Copies of tensors in host memory; for a GPU page-locked, where copying is fast, and kept for the next ones."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def of(self, tensors: Mapping[str, torch.Tensor], *, device: torch.device) -> dict[str, torch.Tensor]:
        """Copies of tensors as they are now, by the same names; good until the next call.

        Args:
            device: of this rank.
        """
        for name, tensor in tensors.items():
            copy = self._kept.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                self._kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
            self._kept[name].copy_(tensor, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return {name: self._kept[name] for name in tensors}

    def release(self, device: torch.device) -> None:
        """Gives the memory back, unless it was page-locked, which takes long."""
        if device.type != "cuda":
            self._kept = {}


def in_background(action: Callable[[], T]) -> Future[T]:
    """Runs something in a thread of its own, which ends with the process; its result, or what it raised."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001  # raised again by whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future
