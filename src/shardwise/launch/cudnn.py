"""The cuDNN that PyTorch will find here, and what an old one costs where it computes attention."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from shardwise.catalog.gpus import find_gpu
from shardwise.errors import HardwareError
from shardwise.spec.support.sdpa import LEAST_CUDNN, sdpa_kernel

_LIBRARY = "libcudnn.so.9"
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def old_cudnn(gpu_names: Sequence[str]) -> tuple[str, str] | None:
    """What is found and what to do, where PyTorch takes FlashAttention-2 for want of a newer cuDNN.
    Folders of LD_LIBRARY_PATH come before the cuDNN that torch brings (DT_RUNPATH of ld.so)."""
    if not any(_takes_cudnn(name) for name in gpu_names):
        return None
    folders = map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    hiding = next((folder for folder in folders if (folder / _LIBRARY).is_file()), None)
    if hiding is not None:
        version = (hiding / _LIBRARY).resolve().name
        where = f"in {hiding}, a folder of LD_LIBRARY_PATH, hides the one that torch brings"
        hint = f"leave {hiding} out of LD_LIBRARY_PATH"
    else:
        version, where = _of_package(), "came with torch"
        hint = "install torch's build for CUDA 13, which brings a newer one"
    found = _VERSION.search(version)
    if found is None or _number(found[0]) >= LEAST_CUDNN:
        return None
    least = f"{LEAST_CUDNN // 10_000}.{LEAST_CUDNN // 100 % 100}.{LEAST_CUDNN % 100}"
    slower = "attention over long rows takes about 1.6 times as long"
    return f"cuDNN {found[0]} {where}; below {least} PyTorch takes FlashAttention-2 here, and {slower}", hint


def _takes_cudnn(name: str) -> bool:
    try:
        gpu = find_gpu(name).gpu
    except HardwareError:
        return False
    return sdpa_kernel(gpu, "bfloat16", heads=(128, 128)) == "cudnn"


def _of_package() -> str:
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _number(version: str) -> int:
    major, minor, patch = map(int, version.split("."))
    return 10_000 * major + 100 * minor + patch
