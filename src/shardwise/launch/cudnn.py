"""The cuDNN that PyTorch will find here, and what an old one costs on GPUs where its attention goes
first."""

import os
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from shardwise.catalog.gpus import find_gpu
from shardwise.errors import HardwareError
from shardwise.spec.support.sdpa import LEAST_CUDNN, sdpa_kernel

_LIBRARY = "libcudnn.so.9"
_VERSION = re.compile(r"\.so\.(\d+)\.(\d+)\.(\d+)")
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def old_cudnn(gpu_names: Sequence[str]) -> tuple[str, str] | None:
    """What is found and what to do, where PyTorch takes FlashAttention-2 for want of a newer cuDNN;
    None where it does not. Folders of LD_LIBRARY_PATH come before the cuDNN that torch brings
    (DT_RUNPATH of ld.so)."""
    if not any(_takes_cudnn(name) for name in gpu_names):
        return None
    hiding = _first_on_path()
    if hiding is not None:
        where, found = (
            f"{hiding.parent}, a folder of LD_LIBRARY_PATH, hides the one that torch brings",
            _of_file(hiding),
        )
        hint = f"leave {hiding.parent} out of LD_LIBRARY_PATH"
    else:
        where, found = "came with torch", _of_package()
        hint = "install torch's build for CUDA 13, which brings a newer one"
    if found is None or found >= LEAST_CUDNN:
        return None
    slower = "attention over long rows takes about 1.6 times as long"
    said = f"cuDNN {_written(found)} in {where}" if hiding is not None else f"cuDNN {_written(found)} {where}"
    return f"{said}; below {_written(LEAST_CUDNN)} PyTorch takes FlashAttention-2 here, and {slower}", hint


def _takes_cudnn(name: str) -> bool:
    try:
        gpu = find_gpu(name).gpu
    except HardwareError:
        return False
    return sdpa_kernel(gpu, "bfloat16", heads=(128, 128)) == "cudnn"


def _first_on_path() -> Path | None:
    folders = (Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    return next((folder / _LIBRARY for folder in folders if (folder / _LIBRARY).is_file()), None)


def _of_file(library: Path) -> int | None:
    found = _VERSION.search(library.resolve().name)
    return _number(*found.groups()) if found else None


def _of_package() -> int | None:
    for name in _PACKAGES:
        try:
            return _number(*metadata.version(name).split(".")[:3])
        except (metadata.PackageNotFoundError, TypeError, ValueError):
            continue
    return None


def _number(major: str, minor: str, patch: str) -> int:
    """As `torch.backends.cudnn.version()` has it."""
    return 10_000 * int(major) + 100 * int(minor) + int(patch)


def _written(number: int) -> str:
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"
