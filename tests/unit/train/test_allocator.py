"""What is reserved follows the rules of PyTorch's caching allocator."""

import pytest

from shardwise.train.rehearsing.allocator import reserved_bytes
from shardwise.train.rehearsing.ledger import Allocation, Change
from shardwise.units import MIB


def _changes(*sizes: float) -> list[Change]:
    """Allocations of so many MiB, in order; a negative number frees the oldest of that size."""
    alive: list[tuple[int, Allocation]] = []
    changes: list[Change] = []
    for size in sizes:
        count = round(abs(size) * MIB)
        if size > 0:
            alive.append((count, Allocation("activations", "", (count,), "uint8")))
            one = alive[-1]
        else:
            one = next(known for known in alive if known[0] == count)
            alive.remove(one)
        changes.append(Change(one[1], count if size > 0 else -count, "forward"))
    return changes


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ((0.001,), 2),  # small pieces share segments of 2 MiB
        ((1, 1), 2),
        ((1, 1, 0.001), 4),
        ((1.5,), 20),  # larger ones those of 20 MiB
        ((9, 9, 1.5), 20),
        ((9, 9, 2.5), 40),
        ((12.5,), 14),  # from 10 MiB on each has its own, in multiples of 2 MiB
        ((12.5, -12.5, 12.1), 14),  # what is free is used again
        ((40, -40, 15, 20), 40),  # and cut where more than 1 MiB is left
        ((40, -40, 15, 20, 10), 50),
        ((40, -40, 15, 20, -15, -20, 39), 40),  # neighbours are joined
        ((40, -40, 15, 20, -15, 39), 80),
        ((14, 12, -12, -14, 11), 26),  # the smallest that is large enough
    ],
)
def test_segments_are_reserved_as_on_a_gpu(sizes: tuple[float, ...], reserved: int) -> None:
    assert reserved_bytes(_changes(*sizes)) == reserved * MIB
