"""The order of an epoch's samples, and which documents share one: pure functions of (data, weights,
seed, epoch).

The order uses its own counter-based hash, because NumPy's streams may change between releases.
"""

import math
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

#: Purposes of random numbers, so that no two draws share a stream.
ORDER, WINDOW, EVALUATION = 1, 2, 3


def permutation(size: int, *keys: int) -> Ids:
    """0 .. size - 1 in an order that depends on the keys only."""
    stream = np.uint64(0)
    with np.errstate(over="ignore"):
        for key in keys:
            stream = mix(stream ^ np.uint64(key % 2**64))
        ranks = mix(np.arange(size, dtype=np.uint64) + stream)
    return np.argsort(ranks, kind="stable")


def mix(values: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64] | np.uint64:
    """SplitMix64's step and finaliser: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom
    number generators", OOPSLA 2014; it passes BigCrush."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def visits(size: int, weight: float) -> tuple[int, int]:
    """How an epoch with this weight visits `size` samples: (whole passes, samples of one more)."""
    whole = math.floor(weight)
    partial = round((weight - whole) * size)
    return (whole, partial) if whole or partial else (0, 1)


def samples_per_epoch(sizes: Sequence[int], weights: Sequence[float]) -> int:
    """Samples an epoch shows, given those of each source; the same in every epoch."""
    total = 0
    for size, weight in zip(sizes, weights, strict=True):
        whole, partial = visits(size, weight)
        total += whole * size + min(partial, size)
    return total


def epoch_order(
    sources: npt.NDArray[np.uint16], *, weights: Sequence[float], seed: int, epoch: int, shuffle: bool
) -> Ids:
    """Sample numbers in the order an epoch shows them. The whole part of a weight shows each sample
    that often; the fraction a window that moves with the epoch over one permutation of a source."""
    seen: list[Ids] = []
    for source, weight in enumerate(weights):
        ids = np.flatnonzero(sources == source)
        if not len(ids):
            continue
        whole, partial = visits(len(ids), weight)
        seen += [ids] * whole
        window = (epoch * partial + np.arange(min(partial, len(ids)))) % len(ids)
        seen.append(np.sort(ids[permutation(len(ids), seed, WINDOW, source)[window]]) if shuffle else ids[window])
    order = np.concatenate(seen)
    return order[permutation(len(order), seed, ORDER, epoch)] if shuffle else order


def pack(lengths: npt.NDArray[np.int32], *, capacity: int) -> tuple[Ids, Ids]:
    """Packs documents of at most `capacity` tokens into sequences of at most as many: (offsets,
    documents). Pack p holds `documents[offsets[p]:offsets[p + 1]]`, ascending; packs are in the
    order of their first documents. Best fit on decreasing lengths: at most 11/9 of the optimum (D.
    S. Johnson et al., SIAM J. Comput. 3(4), 1974)."""
    packs = _best_fit(lengths, capacity)
    first = np.full(int(packs.max(initial=-1)) + 1, len(lengths), np.int64)
    np.minimum.at(first, packs, np.arange(len(lengths)))
    rank = np.empty_like(first)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    packs = rank[packs]
    documents = np.argsort(packs, kind="stable")
    return np.concatenate(([0], np.cumsum(np.bincount(packs, minlength=len(first))))).astype(np.int64), documents


def _best_fit(lengths: npt.NDArray[np.int32], capacity: int) -> Ids:
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
