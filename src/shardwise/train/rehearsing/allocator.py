"""What PyTorch's caching allocator on CUDA reserves for a sequence of allocations, in one stream, by its own rules
(c10/cuda/CUDACachingAllocator.cpp): sizes in multiples of 512 bytes, small ones out of segments of 2 MiB, others out of
20 MiB or of their own size in multiples of 2 MiB; the smallest free piece that is large enough, cut where much of it is
left, and joined again with free neighbours."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

from shardwise.train.rehearsing.ledger import Change
from shardwise.units import MIB

_ROUNDING = 512
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_MEDIUM, _LARGE_SEGMENT, _LARGE_ROUNDING = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass(eq=False, slots=True)
class _Piece:
    """Of a segment; its neighbours there."""

    size: int
    free: bool = True
    before: _Piece | None = None
    behind: _Piece | None = None


class _Pool:
    """The segments of small pieces, or of large ones."""

    def __init__(self, *, small: bool) -> None:
        self.reserved = 0
        self._small = small
        self._free: list[tuple[int, int, _Piece]] = []

    def take(self, size: int) -> _Piece:
        """A piece of at least so many bytes."""
        at = bisect_left(self._free, (size,))
        if at < len(self._free):
            piece = self._free.pop(at)[2]
        else:
            piece = _Piece(self._segment(size))
            self.reserved += piece.size
        piece.free = False
        left = piece.size - size
        if left >= _ROUNDING if self._small else left > _SMALL:
            rest = _Piece(left, before=piece, behind=piece.behind)
            if piece.behind is not None:
                piece.behind.before = rest
            piece.size, piece.behind = size, rest
            self._put(rest)
        return piece

    def give(self, piece: _Piece) -> None:
        """Takes a piece back."""
        piece.free = True
        for other in (piece.before, piece.behind):
            if other is not None and other.free:
                self._free.pop(bisect_left(self._free, (other.size, id(other))))
                piece.size += other.size
                if other is piece.before:
                    piece.before = other.before
                    if piece.before is not None:
                        piece.before.behind = piece
                else:
                    piece.behind = other.behind
                    if piece.behind is not None:
                        piece.behind.before = piece
        self._put(piece)

    def _put(self, piece: _Piece) -> None:
        insort(self._free, (piece.size, id(piece), piece))

    def _segment(self, size: int) -> int:
        if self._small:
            return _SMALL_SEGMENT
        return _LARGE_SEGMENT if size < _MEDIUM else -(-size // _LARGE_ROUNDING) * _LARGE_ROUNDING


def reserved_bytes(changes: Iterable[Change]) -> int:
    """The most that is reserved; no segment is given back, as long as there is room."""
    small, large = _Pool(small=True), _Pool(small=False)
    held: dict[int, tuple[_Pool, _Piece]] = {}
    for change in changes:
        key = id(change.allocation)
        if key in held:
            pool, piece = held.pop(key)
            pool.give(piece)
        if change.delta > 0:
            size = -(-change.delta // _ROUNDING) * _ROUNDING
            pool = small if size <= _SMALL else large
            held[key] = (pool, pool.take(size))
    return small.reserved + large.reserved
