"""Limits on what a worker process may take, so that a hostile chat template cannot take the machine.

Memory is limited by RLIMIT_DATA, which unlike RLIMIT_AS leaves out reserved address space. Processor time is limited
per batch of rows: the soft RLIMIT_CPU is moved ahead before each.
"""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from shardwise.units import GIB


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one worker may take.

    Attributes:
        memory_bytes: beyond what it holds once the tokenizer is loaded.
        cpu_seconds: for one batch of rows.
    """

    memory_bytes: int = 2 * GIB
    cpu_seconds: int = 60


def bound_memory(limits: Limits) -> None:
    """From now on, allocations beyond the limit fail with MemoryError, or end the process inside libraries."""
    statm = Path("/proc/self/statm").read_text(encoding="ascii").split()
    held = int(statm[5]) * resource.getpagesize()  # data + stack; proc(5)
    _lower(resource.RLIMIT_DATA, held + limits.memory_bytes)
    _lower(resource.RLIMIT_CORE, 0)


def bound_next_batch(limits: Limits) -> None:
    """Ends the process by SIGXCPU unless this is called again within `cpu_seconds` of processor time."""
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.cpu_seconds)


def _lower(which: int, soft: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(which, (soft, hard))
