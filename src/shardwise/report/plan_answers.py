"""What a plan answers beyond whether a job fits: the value it was solved for, and the hardware compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwise.report.pages.render import fragment
from shardwise.spec.offers import Offer
from shardwise.spec.plan import Plan
from shardwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from markupsafe import Markup

COLUMNS = ("Hardware", "Best for", "Layout", "Peak memory", "Step", "Whole run", "Cost")
WORDS = 3  # columns that hold words; the others hold figures


def answers(plan: Plan) -> Markup:
    """The answers as sections; empty where a plan was all that was asked for."""
    offers = plan.offers
    rows = [] if offers is None else [_row(offer) for offer in offers.laid_out]
    return fragment("answers.html", solved=plan.solved, offers=offers, columns=COLUMNS, words=WORDS, rows=rows)


def _row(offer: Offer) -> tuple[str, ...]:
    peak, capacity = offer.peak_bytes, format_bytes(offer.capacity_bytes)
    return (
        offer.hardware,
        ", ".join(offer.best_for),
        offer.strategy or "",
        "" if peak is None else f"{format_bytes(peak)} of {capacity}",
        "" if offer.step_seconds is None else format_seconds(offer.step_seconds),
        "not known" if offer.total_seconds is None else format_seconds(offer.total_seconds),
        offer.price or "no price",
    )
