"""What passes at an instant as affine functions of a micro-batch's tokens and of the positions whose logits are alive,
and the upper end of a forecast where so much is alive at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shardwise.plan.margins import DOUBT, reserved_shares, segment_bytes

#: A number that is fixed, one per token, and one per position.
Affine = tuple[float, float, float]
#: Bytes of activations, logits, communication and temporaries.
Values = tuple[float, float, float, float]
_ZERO: Affine = (0.0, 0.0, 0.0)
_DOUBTS = tuple(DOUBT[part] for part in ("gradients", "activations", "logits", "communication", "temporary"))


class Passing(NamedTuple):
    """Bytes by part; gradients do not depend on the micro-batch."""

    gradients: float = 0.0
    activations: Affine = _ZERO
    logits: Affine = _ZERO
    communication: Affine = _ZERO
    temporary: Affine = _ZERO

    def at(self, tokens: float, positions: float) -> Values:
        """Of a micro-batch, without the gradients."""
        _, (a, b, c), (d, e, f), (g, h, i), (j, k, m) = self
        return (
            a + b * tokens + c * positions,
            d + e * tokens + f * positions,
            g + h * tokens + i * positions,
            j + k * tokens + m * positions,
        )


def passing(
    at_nothing: Mapping[str, float], at_token: Mapping[str, float], at_position: Mapping[str, float]
) -> Passing:
    """The functions, by part, that have these values at (0, 0), (1, 0) and (0, 1)."""
    affine = {
        part: (fixed, at_token[part] - fixed, at_position[part] - fixed)
        for part, fixed in at_nothing.items()
        if part != "gradients"
    }
    return Passing(gradients=at_nothing.get("gradients", 0.0), **affine)


class Ceiling:
    """The upper end of the interval, as `forecast_memory` finds it.

    Args:
        context: bytes outside the allocator.
        sharded: weights come and go.
    """

    def __init__(self, *, context: float, sharded: bool) -> None:
        shares = reserved_shares(sharded=sharded)
        self._context, self._squared = context, (context * DOUBT["context"]) ** 2
        self._segment = context * shares["context"] + segment_bytes(context)
        self._staying, self._passing = shares["weights"], shares["activations"]

    def of(self, states: float, gradients: float, passes: Values) -> float:
        """Where so much is alive; `states` are weights and optimizer states, which are known exactly."""
        activations, logits, communication, temporary = passes
        stays, all_of_it = states + gradients, activations + logits + communication + temporary
        g, a, o, c, t = _DOUBTS
        squared = (g * gradients) ** 2 + (a * activations) ** 2 + (o * logits) ** 2
        squared += (c * communication) ** 2 + (t * temporary) ** 2 + self._squared
        alive = stays + all_of_it + self._context + squared**0.5
        reserved = stays * self._staying + all_of_it * self._passing + self._segment
        return alive if alive > reserved else reserved
