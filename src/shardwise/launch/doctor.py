"""What this machine lacks for planning and training, and what to do about each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwise.catalog.gpus import find_gpu
from shardwise.catalog.probe import machine_facts, this_machine
from shardwise.errors import HardwareError
from shardwise.spec.support.sdpa import LEAST_CUDNN, sdpa_kernel
from shardwise.units import GIB, format_bytes

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

Severity = Literal["blocks training", "limits", "note"]

LITTLE_DISK_BYTES = 20 * GIB

#: What each library is needed for, and what a machine without it cannot do.
NEEDED: dict[str, tuple[Severity, str, str]] = {
    "torch": ("blocks training", "train", "training"),
    "transformers": ("blocks training", "train", "models and tokenizers"),
    "tokenizers": ("blocks training", "train", "tokenizing"),
    "safetensors": ("blocks training", "train", "reading and writing weights"),
    "peft": ("blocks training", "train", "LoRA"),
    "numpy": ("blocks training", "train", "preparing data"),
    "pyarrow": ("blocks training", "train", "preparing data"),
    "datasets": ("note", "hub", "data sets by hub id"),
    "bitsandbytes": ("note", "qlora", "QLoRA"),
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is missing or not as it should be."""

    severity: Severity
    what: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """A machine: its facts as found by `catalog.probe.machine_facts`; its lacks, worst first."""

    facts: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def can_train(self) -> bool:
        """Nothing that training needs is missing."""
        return all(finding.severity != "blocks training" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data for `doctor --json`."""
        findings = [asdict(finding) for finding in self.findings]
        return {"version": 1, **self.facts, "can_train": self.can_train, "findings": findings}


def doctor() -> Doctor:
    """What this machine has and lacks for planning and training; imports none of the libraries."""
    facts = machine_facts()
    order = ("blocks training", "limits", "note")
    findings = [*_library_findings(facts["libraries"]), *_gpu_findings(facts)]
    free = int(facts["disk_free_bytes"])
    if free < LITTLE_DISK_BYTES:
        hint = "checkpoints of full fine-tuning take about 12 bytes for each parameter; set output_dir to a larger disk"
        findings.append(Finding(severity="limits", what=f"{format_bytes(free)} of disk are free here", hint=hint))
    return Doctor(facts=facts, findings=tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


def _library_findings(libraries: dict[str, str | None]) -> Iterator[Finding]:
    ranges = supported_ranges()
    for name, (severity, extra, purpose) in NEEDED.items():
        version, hint = libraries.get(name), f"pip install 'shardwise[{extra}]'"
        if version is None:
            yield Finding(severity=severity, what=f"{name} is not installed; needed for {purpose}", hint=hint)
        elif name in ranges and not ranges[name].contains(version, prereleases=True):
            what = f"{name} {version} is outside the supported range {ranges[name]}"
            yield Finding(severity=severity, what=what, hint=hint)


def _gpu_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    try:
        notes = this_machine().notes
    except HardwareError as error:
        yield Finding(severity="limits", what=str(error), hint="show alike GPUs with CUDA_VISIBLE_DEVICES")
    else:
        if not facts["gpus"]:
            hint = "training runs on CPU processes; if there is a GPU, check that nvidia-smi works and lists it"
            yield Finding(severity="limits", what="no NVIDIA GPU was found", hint=hint)
        for note in notes:
            yield Finding(severity="note", what=note, hint="plans for this machine take it into account")
    if facts["gpus"] and facts["c_compiler"] is None:
        what = "no C compiler was found; needed for compiled blocks (train.compile)"
        yield Finding(severity="limits", what=what, hint="install gcc, or set train.compile: false")
    if facts["gpus"] and "+cpu" in str(facts["libraries"].get("torch")):
        hint = "install the CUDA build: see https://pytorch.org/get-started/locally/"
        yield Finding(
            severity="blocks training", what="torch is the build for processors and will not see the GPU", hint=hint
        )
    if (old := old_cudnn([gpu["name"] for gpu in facts["gpus"]])) is not None:
        yield Finding(severity="limits", what=old[0], hint=old[1])


def supported_ranges() -> dict[str, SpecifierSet]:
    """Version ranges that this installation of shardwise declares: `torch` -> `<2.14,>=2.11`. None
    are known without `packaging`, which comes with transformers."""
    try:
        from packaging.requirements import Requirement

        requirements = [Requirement(text) for text in metadata.requires("shardwise") or []]
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    return {requirement.name.lower(): requirement.specifier for requirement in requirements}


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
