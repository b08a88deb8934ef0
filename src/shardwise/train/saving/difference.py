"""Compares the weights of two folders tensor by tensor (`programs/difference.py`).

Both hold safetensors, such as `final/` of two runs. Only one pair of tensors is in memory at a
time.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open


@dataclass(frozen=True, kw_only=True)
class Excused:
    """A tensor that only the floor admits; the rest as in `TensorDifference`."""

    name: str
    relative: float
    absolute: float


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """Two sets of tensors. `relative`: the largest |a - b| / |a| of one, in Frobenius norms;
    `absolute`: of an element; `worst`: the tensor that differs most; `excused`: that of those that
    are; `first`: the first, by name, that differs by more than it may, for a `reason`."""

    num_tensors: int
    relative: float
    absolute: float
    worst: str | None
    excused: Excused | None
    first: str | None
    reason: str | None


def difference(a: Path, b: Path, *, tolerance: float, floor: float = 0.0) -> TensorDifference:
    """Compares tensors by name. One may differ by `tolerance` relative to its norm, or one rounding
    step of its dtype, whichever is more, or by a difference of norm at most `floor`."""
    ours, theirs = _opened(a), _opened(b)
    counted, excused, faults = list[Excused](), list[Excused](), list[tuple[str, str]]()
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            faults.append((name, f"is missing in {b if name in ours else a}"))
            continue
        one, other = ours[name].get_tensor(name), theirs[name].get_tensor(name)
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            faults.append((name, f"is {_kind(one)} in {a} and {_kind(other)} in {b}"))
            continue
        apart, whole, element = _apart(one, other)
        # The rounding step of types shorter than float32; float32's is far below any tolerance.
        is_short = one.dtype.is_floating_point and one.dtype.itemsize < 4
        is_far = apart > max(tolerance, torch.finfo(one.dtype).eps if is_short else 0.0)
        is_excused = is_far and whole <= floor
        (excused if is_excused else counted).append(Excused(name=name, relative=apart, absolute=element))
        if is_far and not is_excused:
            faults.append((name, f"differs by {apart:.2e} relative to its norm"))
    first, reason = faults[0] if faults else (None, None)
    worst = max(counted, key=lambda one: one.relative, default=None)
    return TensorDifference(
        num_tensors=len(ours),
        relative=worst.relative if worst else 0.0,
        absolute=max((one.absolute for one in counted), default=0.0),
        worst=worst.name if worst and worst.relative else None,
        excused=max(excused, key=lambda one: one.relative, default=None),
        first=first,
        reason=reason,
    )


def _opened(folder: Path) -> dict[str, Any]:
    files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
    if not (found := {name: file for file in files for name in file.keys()}):  # noqa: SIM118  # a handle is no mapping
        raise FileNotFoundError(f"{folder} holds no safetensors")
    return found


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _apart(one: torch.Tensor, other: torch.Tensor) -> tuple[float, ...]:
    """(relative norm of the difference, its norm, its largest element), all finite, for JSON."""
    if torch.equal(one, other):
        return 0.0, 0.0, 0.0
    a, b = one.double(), other.double()
    norm, whole = float(a.norm()), float((a - b).norm())
    found = (whole / norm if norm else 1.0, whole, float((a - b).abs().max()))
    return tuple(value if math.isfinite(value) else sys.float_info.max for value in found)
