"""What a rank's rehearsal found: the peak, its instant and its parts, the tensors that make it, what is reserved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from shardwise.train.rehearsing.allocator import reserved_bytes
from shardwise.train.rehearsing.ledger import Allocation, Change
from shardwise.train.rehearsing.rank import Rehearsed

#: Groups of alike tensors that are named.
_NAMED = 12


def summary(found: Rehearsed) -> dict[str, Any]:
    """As plain data: the fields of `spec.rehearsal.RankRehearsal`, without the ranks; and `step_peaks`."""
    changes = found.ledger.changes
    high, at = _highest(changes)
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
    return {
        "held": {"weights": held.weights, "gradients": held.gradients, "optimizer": held.optimizer},
        "peak_bytes": sum(parts.values()),
        "peak_reserved_bytes": reserved_bytes(changes),
        "peak_instant": changes[at].instant,
        "parts": dict(parts),
        "instants": high,
        "step_peaks": _step_peaks(changes, found.begun),
        "tensors": _alike(there),
    }


def _highest(changes: Sequence[Change]) -> tuple[dict[str, int], int]:
    """The most that was alive at each instant, and the index of the change after which most was of all."""
    now = at = 0
    high: dict[str, int] = {}
    most = 0
    for index, change in enumerate(changes):
        now += change.delta
        high[change.instant] = max(high.get(change.instant, 0), now)
        if now > most:
            most, at = now, index
    return high, at


def _step_peaks(changes: Sequence[Change], begun: Sequence[int]) -> list[int]:
    """The most that was alive in each step."""
    alive = list(accumulate(change.delta for change in changes))
    return [max(alive[start:end]) for start, end in pairwise([*begun, len(changes)])]


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
