"""What this machine lacks for planning and training, and what to do about each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

from shardwise.catalog.probe import machine_facts, this_machine
from shardwise.errors import HardwareError
from shardwise.units import GIB, format_bytes

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
}

_RANGE = re.compile(r"(?P<relation><=|>=|<|>|==)(?P<version>[0-9.]+)")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is missing or not as it should be."""

    severity: Severity
    what: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """A machine: its facts as `catalog.probe.machine_facts` found them, and what it lacks, worst first."""

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


def examine() -> Doctor:
    """Looks at this machine; imports none of the libraries."""
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
        elif not lies_in(version, ranges.get(name, "")):
            what = f"{name} {version} is outside the supported range {ranges[name]}"
            yield Finding(severity=severity, what=what, hint=hint)


def _gpu_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    try:
        notes = this_machine().notes
    except HardwareError as error:
        yield Finding(severity="limits", what=str(error), hint="show alike GPUs with CUDA_VISIBLE_DEVICES")
        notes = ()
    else:
        if not facts["gpus"]:
            hint = "training runs on CPU processes; if there is a GPU, check that nvidia-smi works and lists it"
            yield Finding(severity="limits", what="no NVIDIA GPU was found", hint=hint)
    for note in notes:
        yield Finding(severity="note", what=note, hint="plans for this machine take it into account")
    if facts["gpus"] and "+cpu" in str(facts["libraries"].get("torch")):
        hint = "install the CUDA build: see https://pytorch.org/get-started/locally/"
        yield Finding(
            severity="blocks training", what="torch is the build for processors and will not see the GPU", hint=hint
        )


def supported_ranges() -> dict[str, str]:
    """Version ranges that this installation of shardwise declares: `torch` -> `<2.14,>=2.11`."""
    try:
        requirements = metadata.requires("shardwise") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, str] = {}
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9_-]+)\s*([<>=0-9.,]+)", requirement)
        if match is not None:
            found[match.group(1).lower()] = match.group(2)
    return found


def lies_in(version: str, declared: str) -> bool:
    """Whether a release such as `2.13.0+cpu` lies in a range such as `<2.14,>=2.11`; an empty range holds all."""
    mine = _numbers(version)
    for match in _RANGE.finditer(declared):
        bound = _numbers(match["version"])
        comparison = (mine > bound) - (mine < bound)
        allowed = {"<": (-1,), "<=": (-1, 0), "==": (0,), ">=": (0, 1), ">": (1,)}[match["relation"]]
        if comparison not in allowed:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0, 0): the release, filled up so that 2.13 equals 2.13.0."""
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    parts = tuple(int(part) for part in release.group().split(".")) if release else ()
    return (*parts, *(0,) * (4 - len(parts)))
