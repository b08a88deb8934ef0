"""CPU processes that stand in for GPUs: how many, how much memory each, and how fast (nominally, or as measured)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

from shardwise.spec.cluster import Cluster, Gpu, Link, Node

MAX_PROCESSES = 8

#: Per core and second, for plans on a machine that has not been measured: a 2.5 GHz core with two 256-bit
#: multiply-add units reaches 2.5e9 * 2 * 8 * 2 = 80 GFLOP/s in float32; matrix products of a training step see about
#: half. bfloat16 is emulated on most CPUs and slower.
NOMINAL_FLOPS = {"float32": 40e9, "bfloat16": 20e9, "float16": 10e9}
NOMINAL_MEMORY_BYTES_PER_SECOND = 10e9
#: Gloo over the loopback device: a copy through the kernel on each side.
LOOPBACK = Link(name="loopback", bytes_per_second=1.5e9, latency_seconds=100e-6)

_UNLIMITED = 1 << 60


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_cluster(*, num_processes: int | None = None) -> Cluster:
    """CPU processes of this machine; by default one for each usable core, at most eight."""
    cores = usable_cores()
    count = num_processes or min(cores, MAX_PROCESSES)
    measured = _measured()
    share = cores / count
    rates: dict[str, float] = measured.get("flops_per_second", NOMINAL_FLOPS)
    bandwidth: float = measured.get("memory_bytes_per_second", NOMINAL_MEMORY_BYTES_PER_SECOND)
    gpu = Gpu(
        name="cpu",
        kind="cpu",
        memory_bytes=available_memory() // count,
        dense_flops={kind: rate * share for kind, rate in rates.items()},
        memory_bytes_per_second=bandwidth / count,
        measured=bool(measured),
    )
    return Cluster(node=Node(gpu=gpu, num_gpus=count, link=LOOPBACK))


def probe_file() -> Path:
    """Where measured rates of this machine lie: `flops_per_second`, `memory_bytes_per_second`, `cpu`."""
    root = os.environ.get("SHARDWISE_CACHE") or Path("~/.cache/shardwise").expanduser()
    return Path(root) / "probe.json"


def _measured() -> dict[str, Any]:
    """Rates of `probe.json`, per core and for the whole memory; empty where the file is missing or another CPU's."""
    try:
        data: Any = json.loads(probe_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    found = cast(dict[str, Any], data)
    rates: Any = found.get("flops_per_second")
    bandwidth: Any = found.get("memory_bytes_per_second")
    if found.get("cpu") != cpu_model() or not isinstance(rates, dict) or not _positive(bandwidth):
        return {}
    kept = {str(k): float(v) for k, v in cast(dict[Any, Any], rates).items() if _positive(v)}
    if "float32" not in kept:
        return {}
    per_core = {kind: rate / usable_cores() for kind, rate in kept.items()}
    return {"flops_per_second": per_core, "memory_bytes_per_second": float(bandwidth)}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def cpu_model() -> str:
    """The processor's name, or its architecture where the kernel does not say."""
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return os.uname().machine if hasattr(os, "uname") else "unknown"


def available_memory() -> int:
    """Bytes this process may still take: free and reclaimable RAM, within the limit of its control group."""
    free = _UNLIMITED
    for line in _lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            free = int(value.split()[0]) * 1024
    return min(free, _group_memory_left(), _UNLIMITED)


def _group_memory_left() -> int:
    """What the control group (version 2 or 1) leaves, or a very large number."""
    pairs = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    )
    for limit_file, used_file in pairs:
        limit, used = _lines(limit_file)[:1], _lines(used_file)[:1]
        if limit and limit[0].strip().isdigit():
            taken = int(used[0]) if used and used[0].strip().isdigit() else 0
            return max(0, int(limit[0]) - taken)
    return _UNLIMITED


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
