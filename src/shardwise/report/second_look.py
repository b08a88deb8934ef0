"""A layout that differs with AdamW, compared again with SGD and with AdamW damped (a large `adam_epsilon`).

AdamW divides by the root of the squared gradients: where a gradient is almost 0, rounding becomes a whole step.
"""

from __future__ import annotations

from dataclasses import replace

from shardwise.report.fields import number
from shardwise.report.parity import FIGURES, WEIGHTS, Agreement, Difference

_SAME_WITH_SGD = "with sgd all of it is the same"

#: The note of losses and norms that differ with AdamW alone.
_ROUNDING = (
    "with sgd and with adamw damped all of it is the same: adamw amplifies rounding where a gradient is almost 0"
)


def may_be_rounding(found: Agreement) -> bool:
    """Whether a layout differs only in what is computed in floating point."""
    return found.first is not None and (found.first.figure == WEIGHTS or FIGURES.get(found.first.figure) == "close")


def looked_at_plainly(found: Agreement, plain: Agreement, *, most: float) -> Agreement:
    """The comparison with AdamW, after the one with SGD.

    Weights that agree with SGD, and differ by no more than AdamW's steps can make, count as equal; losses and norms
    do not.

    Args:
        found: with AdamW.
        plain: with SGD.
        most: the largest difference of one weight that AdamW's steps can make.
    """
    if found.first is None:
        return found
    if plain.first is not None:
        note = f"with sgd {_without_name(plain.first)}"
        return replace(found, plain=plain, first=replace(found.first, note=note))
    absolute = None if found.weights is None else number(found.weights, "absolute")
    if found.first.figure == WEIGHTS and absolute is not None and absolute <= most:
        return replace(found, plain=plain, first=None)
    far = absolute is not None and absolute > most
    note = f"{_SAME_WITH_SGD}, and adamw's steps of rounding cannot add up to this" if far else _SAME_WITH_SGD
    return replace(found, plain=plain, first=replace(found.first, note=note))


def looked_at_damped(found: Agreement, seen: Agreement, damped: Agreement) -> Agreement:
    """The comparison with AdamW, after the one with an `adam_epsilon` so large that rounding is not amplified.

    An error in AdamW's own work still differs there, except in weights whose gradient is almost 0.

    Args:
        found: with the job's AdamW.
        seen: the result of `looked_at_plainly`, returned where `damped` agrees.
        damped: with the large `adam_epsilon`.
    """
    if found.first is None:
        return seen
    if damped.first is None:
        rounded = seen.first is not None and seen.first.note == _SAME_WITH_SGD
        return replace(seen, damped=damped, first=replace(found.first, note=_ROUNDING) if rounded else seen.first)
    note = f"{_SAME_WITH_SGD}, with adamw damped {_without_name(damped.first)}"
    return replace(seen, damped=damped, first=replace(found.first, note=note))


def _without_name(difference: Difference) -> str:
    return difference.sentence.removeprefix(f"{difference.layout} ")
