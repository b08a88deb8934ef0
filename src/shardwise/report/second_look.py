"""A layout that differs with AdamW, looked at again: is it the layout, or what AdamW makes of rounding?"""

from __future__ import annotations

from dataclasses import replace

from shardwise.report.fields import number
from shardwise.report.parity import FIGURES, WEIGHTS, Agreement, Difference


def may_be_rounding(found: Agreement) -> bool:
    """Whether a layout differs in nothing but what is computed in floating point, of which AdamW may make more."""
    return found.first is not None and (found.first.figure == WEIGHTS or FIGURES.get(found.first.figure) == "close")


def looked_at_plainly(found: Agreement, plain: Agreement, *, most: float) -> Agreement:
    """A layout that differs with AdamW, after the same was compared with plain SGD, which makes no more of rounding.

    Where that agrees, weights that lie no farther apart than AdamW can step may be its own rounding: SGD has none of
    AdamW's state, so what is wrong with that is left to `looked_at_damped`. Losses and norms are promised with AdamW.

    Args:
        most: how far AdamW can carry one weight apart from another.
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
    note = f"{_SAME_WITH_SGD}, and adamw's steps of rounding do not reach so far" if far else _SAME_WITH_SGD
    return replace(found, plain=plain, first=replace(found.first, note=note))


_SAME_WITH_SGD = "with sgd all of it is the same"

#: Of losses and norms, which are promised, that differ with AdamW alone.
_ROUNDING = (
    "with sgd and with adamw damped all of it is the same: adamw makes whole steps of rounding where a gradient is "
    "next to nothing"
)


def looked_at_damped(found: Agreement, seen: Agreement, damped: Agreement) -> Agreement:
    """A layout that differs with AdamW alone, after the same was compared with an `adam_epsilon` so large that
    AdamW makes no steps of rounding: what is wrong with AdamW's own work in weights that have a gradient differs still.
    What is wrong in those alone that have next to none does not: LoRA's A, as long as B has hardly left zero. Nor does
    what carries a tensor less far astray than the floor, `tolerance * sqrt(all elements / its own)` of its own way.

    Args:
        found: as it was with the job's AdamW.
        seen: as `looked_at_plainly` left it, which is what it is where this agrees too.
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
