"""Learn mode: one step of the toy model, frame by frame, as the planner schedules it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from shardwise import api
from shardwise.spec.plan.timeline import KIND_WORDS
from shardwise.units import format_seconds

#: In the order in which one meets them.
ORDER = ("mp", "ddp", "fsdp", "tp", "pp", "zero1", "zero2")
LETTERS, ROWS = ("a", "b", "c"), range(3)
HELD = {"weights": "weights", "gradients": "gradients", "optimizer": "optimizer states"}


def learn_page(query: Mapping[str, str]) -> dict[str, Any]:
    """What the page shows at the place that the address names; what it does not have is taken as the beginning."""
    strategies = {one.name: one for one in api.STRATEGIES}
    under = query.get("under", "")
    under = under if under in strategies else ORDER[0]
    found, at = api.frames(under), query.get("at", "1")
    is_number = at.isascii() and at.isdigit() and len(at) <= 4
    place = max(1, min(int(at), len(found))) if is_number else 1
    frame = found[place - 1]
    return {
        "strategies": [strategies[name] for name in ORDER],
        "strategy": strategies[under],
        "under": under,
        "place": place,
        "count": len(found),
        "frame": frame,
        "when": f"{format_seconds(frame.start)} to {format_seconds(frame.end)} of the step",
        "letters": LETTERS,
        "rows": ROWS,
        "held": HELD,
        "words": KIND_WORDS,
        "in_words": in_words,
        "chart": Markup(api.toy_chart(under, share=frame.share)),  # noqa: S704 - rendered with every value escaped
    }


def in_words(held: frozenset[tuple[int, int]]) -> str:
    """Pieces in letters: `a b c` are whole layers, `a0` is the first row of a."""
    found: list[str] = []
    for layer, letter in enumerate(LETTERS):
        rows = [row for row in ROWS if (layer, row) in held]
        found += [letter] if len(rows) == len(ROWS) else [f"{letter}{row}" for row in rows]
    return " ".join(found) or "nothing"
