"""What PyTorch's caching allocator on CUDA reserves for a sequence of allocations, in one stream,
by its own rules (c10/cuda/CUDACachingAllocator.cpp): sizes in multiples of 512 bytes, small ones
out of segments of 2 MiB, others out of 20 MiB or of their own size in multiples of 2 MiB; the
smallest free piece that is large enough, cut if much of it is left, joined with free neighbours."""

from bisect import bisect_left, insort
from collections.abc import Iterable

from shardwise.train.rehearsing.ledger import Change
from shardwise.units import MIB

_Piece = tuple[int, int, int]

_ROUNDING = 512
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_MEDIUM, _LARGE_SEGMENT, _LARGE_ROUNDING = 10 * MIB, 20 * MIB, 2 * MIB


class _Pool:
    """The segments of small or of large pieces. A piece: its size, segment and offset in it."""

    def __init__(self, *, small: bool) -> None:
        self.reserved = 0
        self._small = small
        self._segments = 0
        self._free: list[_Piece] = []
        self._sizes: dict[tuple[int, int], int] = {}
        self._begins: dict[tuple[int, int], int] = {}

    def take(self, size: int) -> _Piece:
        """A piece of at least so many bytes."""
        at = bisect_left(self._free, (size, 0, 0))
        if at < len(self._free):
            whole, segment, begin = self._drop(*self._free[at])
        else:
            medium = _LARGE_SEGMENT if size < _MEDIUM else -(-size // _LARGE_ROUNDING) * _LARGE_ROUNDING
            whole, segment, begin = _SMALL_SEGMENT if self._small else medium, self._segments, 0
            self._segments += 1
            self.reserved += whole
        left = whole - size
        if left >= _ROUNDING if self._small else left > _SMALL:
            self._put(left, segment, begin + size)
            return size, segment, begin
        return whole, segment, begin

    def give(self, size: int, segment: int, begin: int) -> None:
        """Takes a piece back, and joins it with free neighbours."""
        before, behind = self._begins.get((segment, begin)), self._sizes.get((segment, begin + size))
        if behind is not None:
            size += self._drop(behind, segment, begin + size)[0]
        if before is not None:
            size += self._drop(begin - before, segment, before)[0]
            begin = before
        self._put(size, segment, begin)

    def _put(self, size: int, segment: int, begin: int) -> None:
        insort(self._free, (size, segment, begin))
        self._sizes[segment, begin], self._begins[segment, begin + size] = size, begin

    def _drop(self, size: int, segment: int, begin: int) -> _Piece:
        del self._sizes[segment, begin], self._begins[segment, begin + size]
        return self._free.pop(bisect_left(self._free, (size, segment, begin)))


def reserved_bytes(changes: Iterable[Change]) -> int:
    """The most that is reserved; no segment is given back, as long as there is room."""
    small, large = _Pool(small=True), _Pool(small=False)
    held: dict[int, tuple[_Pool, _Piece]] = {}
    for change in changes:
        key = id(change.allocation)
        if key in held:
            pool, piece = held.pop(key)
            pool.give(*piece)
        if change.delta > 0:
            size = -(-change.delta // _ROUNDING) * _ROUNDING
            pool = small if size <= _SMALL else large
            held[key] = (pool, pool.take(size))
    return small.reserved + large.reserved
