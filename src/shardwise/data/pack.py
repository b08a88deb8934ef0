"""Packing: documents share a sequence, by best fit on decreasing lengths.

Best fit decreasing needs at most 11/9 of the optimal number of sequences, plus a constant (D. S. Johnson et al.,
"Worst-case performance bounds for simple one-dimensional packing algorithms", SIAM J. Comput. 3(4), 1974).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def pack(lengths: npt.NDArray[np.int32], *, capacity: int) -> tuple[Ints, Ints]:
    """Packs documents of at most `capacity` tokens into sequences of at most as many: (offsets, documents). Pack p
    holds `documents[offsets[p]:offsets[p + 1]]`, ascending; packs are in the order of their first documents."""
    packs = _best_fit(lengths, capacity)
    first = np.full(int(packs.max(initial=-1)) + 1, len(lengths), np.int64)
    np.minimum.at(first, packs, np.arange(len(lengths)))
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    packs = rank[packs]
    documents = np.argsort(packs, kind="stable")
    counts = np.bincount(packs, minlength=len(first))
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), documents


def _best_fit(lengths: npt.NDArray[np.int32], capacity: int) -> Ints:
    """The pack of each document; the tightest of the open packs is found by bisection."""
    packs = np.empty(len(lengths), np.int64)
    stacks: dict[int, array[int]] = {}
    rooms: list[int] = []
    num_packs = 0
    for document in np.argsort(-lengths, kind="stable"):
        length = int(lengths[document])
        tightest = bisect_left(rooms, length)
        if tightest < len(rooms):
            room = rooms[tightest]
            chosen = stacks[room].pop()
            if not stacks[room]:
                del stacks[room], rooms[tightest]
        else:
            room, chosen = capacity, num_packs
            num_packs += 1
        packs[document] = chosen
        left = room - length
        if left in stacks:
            stacks[left].append(chosen)
        elif left:
            stacks[left] = array("q", [chosen])
            insort(rooms, left)
    return packs
