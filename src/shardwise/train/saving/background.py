"""Work beside training: copies in host memory, a thread that writes them; one-thread operators."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class HostBuffers:
    """Reusable copies of tensors in host memory, pinned where there is a GPU."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def of(self, tensors: Mapping[str, torch.Tensor], *, device: torch.device) -> dict[str, torch.Tensor]:
        """Copies tensors as they are now, by the same names; valid until the next call."""
        on_gpu = device.type == "cuda"
        for name, tensor in tensors.items():
            copy = self._kept.get(name)
            if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
                copy = self._kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
            copy.copy_(tensor, non_blocking=True)
        # Copies are asynchronous: training may not go on before they have read the weights.
        if on_gpu:
            torch.cuda.synchronize(device)
        return {name: self._kept[name] for name in tensors}

    def release(self, device: torch.device) -> None:
        """Frees the memory, unless it is pinned, which takes long to allocate."""
        if device.type != "cuda":
            self._kept = {}


def in_background(action: Callable[[], T]) -> Future[T]:
    """Runs an action in a daemon thread; its result or exception."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001  # raised again by whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


@contextmanager
def serial_operators() -> Iterator[int]:
    """Inside, each operator takes one thread, in new threads too; yields the number before.
    OpenMP's threads spin while waiting for an operator, on cores meant to hash and write."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
