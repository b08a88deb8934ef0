"""What was asked of a plan beyond whether a job fits, on its page: the value solved for, and the hardware compared."""

from __future__ import annotations

from shardwise.report.markup import Markup, element
from shardwise.spec.offers import Offer, Offers
from shardwise.spec.plan import Plan
from shardwise.units import format_bytes, format_seconds

COLUMNS = ("Hardware", "Best for", "Layout", "Peak memory", "Step", "Whole run", "Cost")
_WORDS = 3  # columns that hold words; the others hold figures


def answers(plan: Plan) -> Markup:
    """The answers as sections of their own; nothing where a plan was all that was asked for."""
    solved = "" if plan.solved is None else _solved(plan.solved.sentence)
    offers = "" if plan.offers is None else _offers(plan.offers)
    return Markup(solved + offers)


def _solved(sentence: str) -> Markup:
    return element("section", element("h2", "Solved"), element("p", sentence), class_="panel")


def _offers(offers: Offers) -> Markup:
    looks = [None] * _WORDS + ["number"] * (len(COLUMNS) - _WORDS)
    names = zip(COLUMNS, looks, strict=True)
    head = element("thead", element("tr", *(element("th", name, scope="col", class_=look) for name, look in names)))
    body = element("tbody", *(_row(offer) for offer in offers.laid_out))
    prices = f"{offers.prices[:1].upper()}{offers.prices[1:]}."
    notes = element("ul", *(element("li", note) for note in offers.notes()), class_="reasons")
    return element(
        "section",
        element("h2", "Hardware"),
        element("p", offers.sentence),
        element("div", element("table", head, body), class_="scroll"),
        element("p", prices, class_="note"),
        notes,
        class_="panel candidates",
    )


def _row(offer: Offer) -> Markup:
    words = (", ".join(offer.best_for), offer.strategy or "")
    figures = (
        "" if offer.peak_bytes is None else f"{format_bytes(offer.peak_bytes)} of {format_bytes(offer.capacity_bytes)}",
        "" if offer.step_seconds is None else format_seconds(offer.step_seconds),
        "not known" if offer.total_seconds is None else format_seconds(offer.total_seconds),
        offer.price or "no price",
    )
    return element(
        "tr",
        element("th", element("code", offer.hardware), scope="row"),
        *(element("td", text) for text in words),
        *(element("td", text, class_="number") for text in figures),
    )
