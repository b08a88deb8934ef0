"""What a rank's rehearsal found: the peak, its instant and its parts, the tensors that make it, what is reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from shardwise.train.rehearsing.allocator import reserved_bytes
from shardwise.train.rehearsing.ledger import Allocation
from shardwise.train.rehearsing.rank import Rehearsed

#: Groups of alike tensors that are named.
_NAMED = 12


def summary(found: Rehearsed) -> dict[str, Any]:
    """As plain data: the fields of `spec.rehearsal.RankRehearsal`, without the ranks; and `step_peaks`."""
    changes = found.ledger.changes
    total = list(accumulate(change.delta for change in changes))
    at, high = max(range(len(total)), key=total.__getitem__), dict[str, int]()
    for change, now in zip(changes, total, strict=True):
        high[change.instant] = max(high.get(change.instant, 0), now)
    alive: Counter[int] = Counter()
    allocations: dict[int, Allocation] = {}
    for change in changes[: at + 1]:
        alive[id(change.allocation)] += change.delta
        allocations[id(change.allocation)] = change.allocation
    there = [(allocations[key], size) for key, size in alive.items() if size]
    parts: Counter[str] = Counter()
    for allocation, size in there:
        parts[allocation.part] += size
    held = found.held
    step_peaks = [max(total[start:end]) for start, end in pairwise([*found.begun, len(changes)])]
    return {
        "held": {"weights": held.weights, "gradients": held.gradients, "optimizer": held.optimizer},
        "peak_bytes": sum(parts.values()),
        "peak_reserved_bytes": reserved_bytes(changes),
        "peak_instant": changes[at].instant,
        "parts": dict(parts),
        "instants": high,
        "step_peaks": step_peaks,
        "tensors": _alike(there),
    }


def _alike(there: Sequence[tuple[Allocation, int]]) -> list[dict[str, Any]]:
    """The largest groups of tensors that are alike."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for one, size in there:
        groups.setdefault((one.part, one.maker, one.dtype, one.shape), []).append(size)
    largest = sorted(groups.items(), key=lambda group: -sum(group[1]))[:_NAMED]
    return [
        {"part": part, "maker": maker, "dtype": dtype, "shape": shape, "count": len(sizes), "bytes": sum(sizes)}
        for (part, maker, dtype, shape), sizes in largest
    ]
