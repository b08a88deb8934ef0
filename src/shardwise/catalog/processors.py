"""CPU processes that stand in for GPUs: how many, how much memory each, and their nominal rates."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from shardwise.spec.cluster import Cluster, Gpu, Link, Node

MAX_PROCESSES = 8

#: Per core and second: a 2.5 GHz core with two 256-bit
#: multiply-add units reaches 2.5e9 * 2 * 8 * 2 = 80 GFLOP/s in float32; matrix products of a
#: training step see about half. bfloat16 is emulated on most CPUs and slower.
NOMINAL_FLOPS = {"float32": 40e9, "bfloat16": 20e9, "float16": 10e9}
NOMINAL_MEMORY_BYTES_PER_SECOND = 10e9
#: Gloo over the loopback device: a copy through the kernel on each side.
LOOPBACK = Link(name="loopback", bytes_per_second=1.5e9, latency_seconds=100e-6)

_UNLIMITED = 1 << 60


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_cluster(*, num_processes: int | None = None) -> Cluster:
    """CPU processes of this machine; by default one for each usable core, at most eight."""
    cores = usable_cores()
    count = num_processes or min(cores, MAX_PROCESSES)
    share = cores / count
    gpu = Gpu(
        name="cpu",
        kind="cpu",
        memory_bytes=available_memory() // count,
        dense_flops={kind: rate * share for kind, rate in NOMINAL_FLOPS.items()},
        memory_bytes_per_second=NOMINAL_MEMORY_BYTES_PER_SECOND / count,
    )
    return Cluster(node=Node(gpu=gpu, num_gpus=count, link=LOOPBACK))


def cpu_model() -> str:
    """The processor's name, or its architecture where the kernel does not say."""
    named = (value.strip() for key, _, value in _pairs("/proc/cpuinfo") if key.strip() == "model name")
    return next(named, os.uname().machine if hasattr(os, "uname") else "unknown")


def free_disk(path: Path) -> int:
    """Bytes that may still be written where a path is or would be."""
    return shutil.disk_usage(next(place for place in (path, *path.absolute().parents) if place.exists())).free


def available_memory() -> int:
    """Bytes this process may still take: reclaimable RAM, within its control group's limit."""
    free = (int(value.split()[0]) * 1024 for key, _, value in _pairs("/proc/meminfo") if key == "MemAvailable")
    return min(next(free, _UNLIMITED), _group_memory_left(), _UNLIMITED)


def _group_memory_left() -> int:
    """What the control group (version 2 or 1) leaves, or a very large number."""
    pairs = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    )
    for limit_file, used_file in pairs:
        limit, used = _lines(limit_file)[:1], _lines(used_file)[:1]
        if limit and limit[0].strip().isdigit():
            return max(0, int(limit[0]) - (int(used[0]) if used and used[0].strip().isdigit() else 0))
    return _UNLIMITED


def _pairs(path: str) -> Iterator[tuple[str, str, str]]:
    return (line.partition(":") for line in _lines(path))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
