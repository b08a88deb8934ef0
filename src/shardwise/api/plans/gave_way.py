"""A plan whose candidates were looked at again: what no longer fits gives way to the next best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwise.spec.plan.forecast import Candidate, Plan, Rejection
from shardwise.spec.support.rows import Reason


def ranked(made: Plan, candidates: Sequence[Candidate], *, chosen: Candidate | None, key: str) -> Plan:
    """What is chosen first, then what fits, then what does not; what gave way, whose reason has that key, has its
    sentence with both."""
    others = sorted((one for one in candidates if one is not chosen), key=lambda one: not one.fits)
    gave_way = [_rejection(one) for one in others if not one.fits and _key(one.reasons[0]) == key]
    sentences = tuple(f"{one.strategy}: {one.reason}" for one in gave_way)
    decided = {(one.strategy, one.layout) for one in (*gave_way, *([] if chosen is None else [_rejection(chosen)]))}
    return replace(
        made,
        candidates=(*([] if chosen is None else [replace(chosen, reasons=(*chosen.reasons, *sentences))]), *others),
        chosen=None if chosen is None else 0,
        rejected=(*gave_way, *(one for one in made.rejected if (one.strategy, one.layout) not in decided)),
        advice=() if chosen is not None else (*sentences, *made.advice),
    )


def _key(reason: str) -> str:
    return reason.row.key if isinstance(reason, Reason) else ""


def _rejection(one: Candidate) -> Rejection:
    layout = one.execution.layout
    return Rejection(strategy=layout.strategy, layout=layout, reason="; ".join(one.reasons))
