"""What this machine has, found without torch: GPUs by nvidia-smi, otherwise CPU processes; and facts for `doctor`."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from shardwise.catalog.gpus import cluster_of, find_gpu
from shardwise.catalog.processors import available_memory, cpu_cluster, cpu_model, usable_cores
from shardwise.errors import HardwareError
from shardwise.spec.cluster import Cluster
from shardwise.units import MIB

_TIMEOUT_SECONDS = 20
_QUERY = ("--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits")

#: Libraries whose versions decide what runs; present or not is read from their metadata, without importing them.
LIBRARIES = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "accelerate",
    "numpy",
    "pyarrow",
    "datasets",
    "tensorboard",
    "bitsandbytes",
)


@dataclass(frozen=True, kw_only=True)
class FoundGpu:
    """One GPU as the driver reports it."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    driver: str


def this_machine() -> Cluster:
    """The visible GPUs of this machine, or `cpu:N` where there are none.

    Raises:
        HardwareError: the GPUs are of different kinds, or of a kind that the catalogue does not have.
    """
    gpus = visible_gpus()
    if not gpus:
        return cpu_cluster()
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        raise HardwareError(
            f"this machine has GPUs of different kinds ({', '.join(names)}); "
            "choose alike ones with CUDA_VISIBLE_DEVICES"
        )
    cluster = cluster_of(find_gpu(names[0]), num_gpus=len(gpus))
    smallest = min(gpu.memory_bytes for gpu in gpus)
    return replace(cluster, node=replace(cluster.node, gpu=replace(cluster.gpu, memory_bytes=smallest)))


def visible_gpus() -> list[FoundGpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; all where it is not set."""
    found = parse_gpu_list(_ask_driver())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found
    visible: list[FoundGpu] = []
    for item in (part.strip() for part in chosen.split(",")):
        match = next((gpu for gpu in found if item == str(gpu.index) or (item and gpu.uuid.startswith(item))), None)
        if match is None:  # as CUDA does: an unknown device hides itself and all after it
            break
        visible.append(match)
    return visible


def _ask_driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def parse_gpu_list(text: str) -> list[FoundGpu]:
    """GPUs from nvidia-smi's lines of `index, uuid, name, MiB, driver`; other lines are left out."""
    found: list[FoundGpu] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit() and cells[3].isdigit():
            index, uuid, name, mib, driver = cells
            found.append(FoundGpu(index=int(index), uuid=uuid, name=name, memory_bytes=int(mib) * MIB, driver=driver))
    return found


def machine_facts() -> dict[str, Any]:
    """What `doctor` prints: Python, processor, memory, disk, GPUs, and which libraries are installed.

    Returns:
        Plain data; `libraries` maps each name of `LIBRARIES` to its version or None.
    """
    gpus = visible_gpus()
    disk = shutil.disk_usage(".")
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "available_memory_bytes": available_memory(),
        "disk_free_bytes": disk.free,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in gpus],
        "driver": gpus[0].driver if gpus else None,
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
