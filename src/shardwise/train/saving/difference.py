"""Compares the weights of two folders tensor by tensor (`programs/difference.py`).

Both hold safetensors, such as `final/` of two runs. Only one pair of tensors is in memory at a time.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open


@dataclass(frozen=True, kw_only=True)
class Excused:
    """A tensor that only the floor admits; `relative` and `absolute` as in `Difference`."""

    name: str
    relative: float
    absolute: float


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """Two sets of tensors.

    Attributes:
        relative: the largest |a - b| / |a| of a tensor that is not excused, in Frobenius norms.
        absolute: the largest |a - b| of an element of these.
        worst: the tensor with the largest relative difference; None where all are equal.
        excused: the excused tensor with the largest relative difference, or None.
        first: the first tensor, by name, that differs by more than it may, or None.
        reason: how it differs.
    """

    num_tensors: int
    relative: float
    absolute: float
    worst: str | None
    excused: Excused | None
    first: str | None
    reason: str | None


def difference(a: Path, b: Path, *, tolerance: float, floor: float = 0.0) -> TensorDifference:
    """Compares tensors by name. A tensor may differ by `tolerance` relative to its norm, or by one rounding step of its
    dtype, whichever is more. Beyond that it is excused if its difference has a norm of at most `floor`."""
    ours, theirs = _files_by_name(a), _files_by_name(b)
    relative, absolute, worst = 0.0, 0.0, None
    excused: Excused | None = None
    faults: list[tuple[str, str]] = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            faults.append((name, f"is missing in {b if name in ours else a}"))
            continue
        one, other = _tensor(ours[name], name), _tensor(theirs[name], name)
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            faults.append((name, f"is {_kind(one)} in {a} and {_kind(other)} in {b}"))
            continue
        apart, whole, element = _apart(one, other)
        close = apart <= max(tolerance, _rounding(one.dtype))
        if not close and whole <= floor:
            if excused is None or apart > excused.relative:
                excused = Excused(name=name, relative=apart, absolute=element)
            continue
        if apart > relative:
            relative, worst = apart, name
        absolute = max(absolute, element)
        if not close:
            faults.append((name, f"differs by {apart:.2e} relative to its norm"))
    first, reason = faults[0] if faults else (None, None)
    return TensorDifference(
        num_tensors=len(ours),
        relative=relative,
        absolute=absolute,
        worst=worst,
        excused=excused,
        first=first,
        reason=reason,
    )


def _files_by_name(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), path)
    if not found:
        raise FileNotFoundError(f"{folder} holds no safetensors")
    return found


def _tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _apart(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float, float]:
    """(norm of the difference relative to the first's norm, that norm, the largest difference of an element)."""
    if torch.equal(one, other):
        return 0.0, 0.0, 0.0
    a, b = one.double(), other.double()
    norm, whole = float(a.norm()), float((a - b).norm())
    return _finite(whole / norm if norm else 1.0), _finite(whole), _finite(float((a - b).abs().max()))


def _finite(value: float) -> float:
    """JSON has no infinity and no NaN."""
    return value if math.isfinite(value) else sys.float_info.max


def _rounding(dtype: torch.dtype) -> float:
    """A rounding step of types shorter than float32; float32's own is far below any tolerance worth stating."""
    return torch.finfo(dtype).eps if dtype.is_floating_point and dtype.itemsize < 4 else 0.0
