"""The GPUs that the driver reports: their memory, who holds it, which are visible; and the
processors and memory of this machine, whose CPU processes stand in for GPUs."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.errors import HardwareError, quoted
from shardwise.spec.cluster import Cluster, Gpu, Link, Node
from shardwise.units import MIB, format_gib

_TIMEOUT_SECONDS = 20
_GPUS = ("--query-gpu=index,uuid,name,memory.total,driver_version,memory.free,mig.mode.current",)
_HOLDERS = ("--query-compute-apps=gpu_uuid,pid,used_memory,process_name",)
_CSV = "--format=csv,noheader,nounits"

#: Values of CUDA_VISIBLE_DEVICES that hide all GPUs; the last is what Slurm sets for a job without
#: any.
_HIDE_ALL = ("", "-1", "NoDevFiles")

#: A slice in the answer of `nvidia-smi -L`: `  MIG 3g.20gb     Device  0: (UUID: MIG-...)`, and a
#: GPU.
_SLICE = re.compile(r"\s*MIG\s+(?P<profile>\S+)\s+Device\s+\d+:\s+\(UUID:\s*(?P<uuid>MIG-[^)\s]+)\)")
_GPU = re.compile(r"GPU (?P<index>\d+):")
_PROFILE = re.compile(r"(?:\d+c\.)?(?P<compute>\d+)g\.(?P<gigabytes>\d+)gb.*")
#: Of a slice's nominal 10^9 bytes, what it really has at least: 1g.5gb has 4.75 GiB, 1g.12gb 10.75,
#: 1g.18gb 16.
_SLICE_SHARE = 0.95
#: A whole GPU's slices of compute: 7g is all of it.
_WHOLE_COMPUTE = 7

_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class FoundGpu:
    """One GPU as the driver reports it. `free_bytes`: None where it does not say;
    `shares_system_memory`: it has none of its own; `is_cut`: MIG is on: processes get slices."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    driver: str
    free_bytes: int | None = None
    shares_system_memory: bool = False
    is_cut: bool = False
    profile: str | None = None
    compute_share: float = 1.0


def visible_gpus() -> list[FoundGpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all where it is not set. Raises
    HardwareError: it names none of this machine's, one twice, several slices, or a GPU cut so."""
    found = parse_gpu_list(_ask(*_GPUS, _CSV))
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = found if stated is None else _chosen(found, stated)
    cut = next((gpu for gpu in visible if gpu.is_cut), None)
    if cut is not None:
        slices = [f"{one.uuid} ({one.profile})" for one in _slices(found) if one.index == cut.index]
        raise HardwareError(
            f"GPU {cut.index} ({cut.name}) is cut in MIG slices, of which a process is given one; name it by "
            f"CUDA_VISIBLE_DEVICES: {', '.join(slices) or 'none has been made yet, see nvidia-smi mig'}"
        )
    return visible


def _chosen(found: list[FoundGpu], stated: str) -> list[FoundGpu]:
    if stated.strip() in _HIDE_ALL:
        return []
    names = [part.strip() for part in stated.split(",")]
    is_slice = any(name.startswith("MIG") for name in names)
    known = _slices(found) if is_slice else found
    visible: list[FoundGpu] = []
    for name in names:
        match = next((gpu for gpu in known if _is_named(gpu, name)), None)
        if match is None:  # as CUDA does: an unknown device hides itself and all after it
            break
        if match in visible:
            raise HardwareError(f"CUDA_VISIBLE_DEVICES is {quoted(stated)}, which names {name} twice; name each once")
        visible.append(match)
    if not visible:
        here = ", ".join(gpu.uuid if is_slice else f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in known)
        raise HardwareError(
            f"CUDA_VISIBLE_DEVICES is {quoted(stated)}, which is none of the {'slices' if is_slice else 'GPUs'} that "
            f"nvidia-smi lists ({here or 'it lists none'}); name one of them, or train on processors with "
            "CUDA_VISIBLE_DEVICES= (set, and empty)"
        )
    if is_slice and len(visible) > 1:
        raise HardwareError(
            f"CUDA_VISIBLE_DEVICES names {len(visible)} MIG slices, and a process can use one; name one of them"
        )
    return visible


def _is_named(gpu: FoundGpu, name: str) -> bool:
    by_index = gpu.profile is None and name == str(gpu.index)
    return by_index or (name not in ("", "GPU-", "MIG-") and not name.isdigit() and gpu.uuid.startswith(name))


def _slices(found: list[FoundGpu]) -> list[FoundGpu]:
    """The MIG slices of this machine, with their profiles' memory and processors."""
    slices: list[FoundGpu] = []
    parent: FoundGpu | None = None
    for line in _ask("-L").splitlines():
        if gpu := _GPU.match(line):
            parent = next((one for one in found if one.index == int(gpu["index"])), None)
        match = _SLICE.match(line)
        profile = _PROFILE.fullmatch(match["profile"]) if match else None
        if parent is None or match is None or profile is None:
            continue
        memory = int(int(profile["gigabytes"]) * 1e9 * _SLICE_SHARE)
        share = int(profile["compute"]) / _WHOLE_COMPUTE
        whole = replace(parent, uuid=match["uuid"], free_bytes=None, is_cut=False, compute_share=share)
        slices.append(replace(whole, profile=match["profile"], memory_bytes=min(memory, parent.memory_bytes)))
    return slices


def parse_gpu_list(text: str) -> list[FoundGpu]:
    """GPUs from nvidia-smi's lines of `index, uuid, name, total MiB, driver, free MiB, MIG mode`;
    no others. Where the total is `[N/A]`, the GPU has none of its own and uses the system's."""
    found: list[FoundGpu] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7 or not cells[0].isdigit():
            continue
        index, uuid, name, total, driver, free, mode = cells
        gpu = FoundGpu(index=int(index), uuid=uuid, name=name, memory_bytes=0, driver=driver, is_cut=mode == "Enabled")
        memory, left = (int(size) * MIB if size.isdigit() else None for size in (total, free))
        if memory is None:
            gpu, memory, left = replace(gpu, shares_system_memory=True), system_memory(), available_memory()
        found.append(replace(gpu, memory_bytes=memory, free_bytes=left))
    return found


def system_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def holders_of(uuid: str, *, without: int | None = None) -> str:
    """Who holds memory of a GPU, but for one process: `python (pid 1234)`."""
    held: list[tuple[int, str, str]] = []
    for line in _ask(*_HOLDERS, _CSV).splitlines():
        cells = [cell.strip() for cell in line.split(",", maxsplit=3)]
        if len(cells) != 4 or cells[0] != uuid or not cells[1].isdigit() or int(cells[1]) == without:
            continue
        mib = int(cells[2]) if cells[2].isdigit() else 0
        size = f", {format_gib(mib * MIB)}" if mib else ""
        held.append((mib, f"{Path(cells[3]).name or 'a process'} (pid {cells[1]}", size))
    if not held:
        return "processes that the driver does not name, such as a display or another container"
    held.sort(key=lambda one: -one[0])
    named = [f"{text}{size if len(held) > 1 else ''})" for _, text, size in held]
    more = len(named) - _MOST_NAMED
    return ", ".join(named[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _ask(*arguments: str) -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


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
