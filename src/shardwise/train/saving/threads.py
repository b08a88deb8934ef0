"""One thread for each operator, where threads of our own keep the processor's cores busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def serial_operators() -> Iterator[int]:
    """Inside, each operator takes one thread, in new threads too; yields how many it took before. OpenMP's threads spin
    while they wait for the next operator, on cores that are to hash, write and compare."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
