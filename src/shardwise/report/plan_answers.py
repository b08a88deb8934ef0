"""What was asked of a plan beyond whether a job fits, on its page: the value solved for, and the hardware compared."""

from __future__ import annotations

from shardwise.report.markup import Markup, element
from shardwise.spec.offers import Offer, Offers
from shardwise.spec.plan import Plan
from shardwise.units import format_gib

COLUMNS = ("Hardware", "Best for", "Layout", "Time", "Cost", "Typical per hour", "Lowest per hour", "Peak memory")
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
    body = element("tbody", *(_row(offer) for offer in offers.shown))
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
    peak = "" if offer.peak_bytes is None else f"{format_gib(offer.peak_bytes)} of {format_gib(offer.capacity_bytes)}"
    words = (offer.answers, offer.written or "")
    figures = (offer.duration or "", offer.cost or "not known", offer.typical, offer.lowest, peak)
    return element(
        "tr",
        element("th", element("code", offer.hardware), scope="row"),
        *(element("td", text) for text in words),
        *(element("td", text, class_="number") for text in figures),
    )
