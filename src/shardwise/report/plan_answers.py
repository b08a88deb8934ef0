"""What was asked of a plan beyond whether a job fits, on its page: the value solved for, and the hardware compared."""

from __future__ import annotations

from shardwise.report.markup import Markup, element
from shardwise.spec.offers import Offers
from shardwise.spec.plan import Plan

WORDS = 3  # columns that hold words; the others hold figures


def answers(plan: Plan) -> Markup:
    """The answers as sections of their own; nothing where a plan was all that was asked for."""
    solved = "" if plan.solved is None else _solved(plan.solved.sentence)
    offers = "" if plan.offers is None else _offers(plan.offers)
    return Markup(solved + offers)


def _solved(sentence: str) -> Markup:
    return element("section", element("h2", "Solved"), element("p", sentence), class_="panel")


def _offers(offers: Offers) -> Markup:
    names, *rows = offers.table()
    looks = [None] * WORDS + ["number"] * (len(names) - WORDS)
    head = (element("th", name.capitalize(), scope="col", class_=look) for name, look in zip(names, looks, strict=True))
    prices = f"{offers.prices[:1].upper()}{offers.prices[1:]}."
    table = element("table", element("thead", element("tr", *head)), element("tbody", *map(_row, rows)))
    return element(
        "section",
        element("h2", "Hardware"),
        element("p", offers.sentence),
        element("div", table, class_="scroll"),
        element("p", prices, class_="note"),
        element("ul", *(element("li", note) for note in offers.notes()), class_="reasons"),
        class_="panel candidates",
    )


def _row(texts: tuple[str, ...]) -> Markup:
    return element(
        "tr",
        element("th", element("code", texts[0]), scope="row"),
        *(element("td", text) for text in texts[1:WORDS]),
        *(element("td", text, class_="number") for text in texts[WORDS:]),
    )
