"""Affine functions of a micro-batch's tokens and of the positions whose logits are alive, and the highest of many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise.plan.margins import DOUBT, reserved_shares, segment_bytes

#: A number that is fixed, one per token, and one per position.
Affine = tuple[float, float, float]
_SHARES = {sharded: reserved_shares(sharded=sharded) for sharded in (False, True)}


@dataclass(frozen=True, slots=True)
class Line:
    """One instant on one rank: bytes alive, bytes the allocator holds, and the squared doubt as a quadratic form."""

    alive: Affine
    reserved: Affine
    doubt: tuple[float, float, float, float, float, float]

    def high(self, tokens: float, positions: float) -> float:
        """The upper end of the interval."""
        fixed, token, position = self.alive
        alive = fixed + token * tokens + position * positions
        fixed, token, position = self.reserved
        reserved = fixed + token * tokens + position * positions
        a, b, c, d, e, f = self.doubt
        squared = a + tokens * (b + d * tokens + e * positions) + positions * (c + f * positions)
        return max(reserved, alive + squared**0.5)


def affine(
    at_nothing: Mapping[str, float], at_token: Mapping[str, float], at_position: Mapping[str, float]
) -> dict[str, Affine]:
    """The functions, by part, that have these values at (0, 0), (1, 0) and (0, 1)."""
    return {part: (fixed, at_token[part] - fixed, at_position[part] - fixed) for part, fixed in at_nothing.items()}


def add(one: Mapping[str, Affine], other: Mapping[str, Affine], *, times: float = 1) -> dict[str, Affine]:
    """One, and so many times the other."""
    total = dict(one)
    for part, (a, b, c) in other.items():
        x, y, z = total.get(part, (0.0, 0.0, 0.0))
        total[part] = (x + times * a, y + times * b, z + times * c)
    return total


def line(parts: Mapping[str, Affine], *, context: float, sharded: bool) -> Line:
    """The line of what is alive by part, beside the context."""
    shares, w = _SHARES[sharded], DOUBT["context"] ** 2
    x = context
    y = z = 0.0
    r, s, t = context * shares["context"] + segment_bytes(context), 0.0, 0.0
    a, b, c, d, e, f = w * context * context, 0.0, 0.0, 0.0, 0.0, 0.0
    for part, (fixed, token, position) in parts.items():
        share, w = shares[part], DOUBT[part] ** 2
        x, y, z = x + fixed, y + token, z + position
        r, s, t = r + share * fixed, s + share * token, t + share * position
        if w:
            a, b, c = a + w * fixed * fixed, b + 2 * w * fixed * token, c + 2 * w * fixed * position
            d, e, f = d + w * token * token, e + 2 * w * token * position, f + w * position * position
    return Line((x, y, z), (r, s, t), (a, b, c, d, e, f))


def highest(lines: Iterable[Line]) -> list[Line]:
    """The lines that are not below another everywhere: no coefficient is negative, so one with larger ones is above."""
    kept: list[Line] = []
    for one in sorted(lines, key=lambda line: -sum(line.alive)):
        if not any(_above(other, one) for other in kept):
            kept.append(one)
    return kept


def _above(other: Line, one: Line) -> bool:
    pairs = zip((*other.alive, *other.reserved, *other.doubt), (*one.alive, *one.reserved, *one.doubt), strict=True)
    return all(a >= b for a, b in pairs)
