"""What this machine has, found without torch: GPUs by nvidia-smi, else CPU processes."""

import os
import platform
import re
import shutil
import sys
from dataclasses import replace
from importlib import metadata
from typing import Any

from shardwise.catalog.devices import (
    FoundGpu,
    available_memory,
    cpu_cluster,
    cpu_model,
    holders_of,
    usable_cores,
    visible_gpus,
)
from shardwise.catalog.gpus import KnownGpu, cluster_of, find_gpu, nominal_gpu, reserved_bytes
from shardwise.catalog.rates import with_rates
from shardwise.errors import HardwareError
from shardwise.spec.cluster import Cluster, Gpu
from shardwise.units import GIB, MIB, format_gib

#: As a job's `hardware`: this machine, with rates that were measured on it.
PROBED = "probed"
#: Less than this, held by others, is not worth a word: what a display or a driver's daemon takes.
_LITTLE_BYTES = 128 * MIB

#: GeForce cards, which may drive a screen, and what a desktop and a browser on one take; nominal.
_DESK, _SCREEN_BYTES = re.compile(r"RTX-[2-5]0[5-9]0(-Ti|-Super|-Ti-Super)?(-\d+GB)?"), round(0.7 * GIB)

#: What PyTorch and Triton look for, beside the path in CC.
_COMPILERS = ("gcc", "cc", "clang", "g++")

#: Libraries whose versions decide what runs; present or not is read from their metadata, without
#: importing them.
LIBRARIES = (
    *("torch", "transformers", "peft", "tokenizers", "safetensors", "accelerate"),
    *("numpy", "pyarrow", "datasets", "tensorboard", "bitsandbytes"),
)


def screen_bytes(hardware: str | None, gpu: str) -> int:
    """What a screen may take of a card's memory, by a job's `hardware` and the card's name. Of this
    machine what is free was read, and decides whether a job fits."""
    return 0 if hardware in (None, PROBED) or not _DESK.fullmatch(gpu) else _SCREEN_BYTES


def this_machine(*, used: int | None = None) -> Cluster:
    """The visible GPUs of this machine with what is free of their memory, or `cpu:N` where there
    are none. `used`: how many of them a job takes, whose memory counts; None: all. Raises
    HardwareError: the GPUs are of different kinds, or CUDA_VISIBLE_DEVICES names none of them."""
    gpus = visible_gpus()
    if not gpus:
        return with_rates(cpu_cluster())
    names = sorted({gpu.name for gpu in gpus})
    if len(names) > 1:
        raise HardwareError(
            f"this machine has GPUs of different kinds ({', '.join(names)}); "
            "choose alike ones with CUDA_VISIBLE_DEVICES"
        )
    known, unknown = known_or_nominal(names[0])
    gpu, held = _with_free_memory(_part(known.gpu, gpus[0]), gpus[:used])
    cluster = cluster_of(replace(known, gpu=gpu), num_gpus=len(gpus))
    return with_rates(replace(cluster, notes=tuple(note for note in (unknown, held) if note)))


def probed_machine() -> Cluster:
    """This machine with rates of `shardwise probe`. Raises HardwareError: there are none."""
    machine = this_machine()
    if not machine.gpu.measured:
        raise HardwareError("hardware is probed, and this machine has not been; run `shardwise probe` first")
    return machine


def known_or_nominal(name: str) -> tuple[KnownGpu, str | None]:
    """The catalogue's entry of a driver's name, or one with nominal rates and a sentence."""
    try:
        return find_gpu(name), None
    except HardwareError:
        entry = nominal_gpu(name)
        return entry, (
            f"the GPU {entry.gpu.name} is not in the catalogue: its memory is what the driver reports, and its rates "
            "are not known; times are counted with those of an A100 and may be far off, and MFU is not measured"
        )


def _part(gpu: Gpu, found: FoundGpu) -> Gpu:
    """What a MIG slice has of a GPU's rates; a whole GPU has all."""
    if found.profile is None:
        return gpu
    rates = {kind: rate * found.compute_share for kind, rate in gpu.dense_flops.items()}
    bandwidth = gpu.memory_bytes_per_second * found.memory_bytes / gpu.memory_bytes if gpu.memory_bytes else 0.0
    return replace(
        gpu,
        name=f"{gpu.name} MIG {found.profile}",
        dense_flops=rates,
        memory_bytes_per_second=bandwidth or gpu.memory_bytes_per_second * found.compute_share,
        usd_per_hour=None,
    )


def _with_free_memory(gpu: Gpu, used: list[FoundGpu]) -> tuple[Gpu, str | None]:
    """A GPU with what each of those has and others do not hold; and what is to be said of that."""
    smallest = min(one.memory_bytes for one in used)
    usable = smallest - (gpu.reserved_bytes if smallest == gpu.memory_bytes else reserved_bytes(smallest))
    fullest = min(used, key=lambda one: usable if one.free_bytes is None else one.free_bytes)
    free = usable if fullest.free_bytes is None else min(usable, fullest.free_bytes)
    held = usable - free
    if held < _LITTLE_BYTES:
        return replace(gpu, memory_bytes=smallest, reserved_bytes=smallest - usable), None
    others = "other programs, in the system's memory, which it shares"
    who = others if fullest.shares_system_memory else holders_of(fullest.uuid)
    said = (
        f"GPU {fullest.index}: {format_gib(held)} are held by {who}; planned for the {format_gib(free)} that are free"
    )
    return replace(gpu, memory_bytes=smallest, reserved_bytes=smallest - free), said


def machine_facts() -> dict[str, Any]:
    """What `doctor` prints: Python, processor, memory, disk, GPUs, and which libraries are
    installed. Plain data; `libraries` maps each name of `LIBRARIES` to its version or None."""
    try:
        gpus = visible_gpus()
    except HardwareError:  # which `this_machine` repeats
        gpus = []
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
        "c_compiler": c_compiler(),
        "libraries": {name: version_of(name) for name in LIBRARIES},
    }


def c_compiler() -> str | None:
    """What Triton would call to compile blocks: what CC names, or the first on the path."""
    return os.environ.get("CC") or next(filter(None, map(shutil.which, _COMPILERS)), None)


def version_of(library: str) -> str | None:
    """The version of an installed library, or None."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None
