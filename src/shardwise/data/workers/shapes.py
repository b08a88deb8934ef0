"""What a chat template makes of all rows of one shape, found once with a mark for each text.

A row's own rendering is always the truth. Where it is the shape's with the row's texts put in, it
is known without another rendering where each text stands and what is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from shardwise.data.workers.said import BEFORE, BEHIND, MARK, Message, Place, is_whole, said_in
from shardwise.data.workers.template import Span


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a template makes of rows with the same roles and keys.

    Attributes:
        parts: (what stands before a text, which text, whether its white space is kept on the left,
            on the right), in the order of the rendering; none where it refuses marks.
        spans: of the trained turns, each as two points, (number of the part, character of what
            stands before it); None where they have to be found anew for each row.
        lost: places of texts that are not written.
        earlier: those of them that are reasoning of an earlier turn, where the last turn's is
            written.
        text_arguments: whether the template expects arguments of calls as JSON text.
    """

    parts: tuple[tuple[str, int, bool, bool], ...] = ()
    tail: str = ""
    spans: tuple[tuple[tuple[int, int], tuple[int, int]], ...] | None = None
    lost: frozenset[Place] = frozenset()
    earlier: frozenset[Place] = frozenset()
    text_arguments: bool = False

    def fill(self, messages: Sequence[Message], text: str) -> list[Span] | None:
        """The trained spans of a row rendered as `text`; None where that is not the shape's."""
        texts = [said for _, said in said_in(messages)]
        pieces: list[str] = []
        for before, number, left, right in self.parts:
            said = texts[number]
            said = said if left else said.lstrip()
            pieces += (before, said if right else said.rstrip())
        pieces.append(self.tail)
        if not self.parts or "".join(pieces) != text:
            return None
        starts = list(accumulate(map(len, pieces), initial=0))
        return [(starts[2 * a] + b, starts[2 * c] + d) for (a, b), (c, d) in self.spans or ()]


def cut(text: str, places: Sequence[Place]) -> tuple[tuple[tuple[str, int, bool, bool], ...], str, list[Span]]:
    """A rendering of marks as parts and tail; the spans of the text before each and of the tail."""
    parts: list[tuple[str, int, bool, bool]] = []
    literals: list[Span] = []
    at = 0
    for found in MARK.finditer(text):
        start, stop = found.span()
        left = right = True
        if is_whole(places[int(found[1])]):
            left, right = text[at:start].endswith(BEFORE), text.startswith(BEHIND, stop)
            start, stop = start - len(BEFORE) * left, stop + len(BEHIND) * right
        parts.append((text[at:start], int(found[1]), left, right))
        literals.append((at, start))
        at = stop
    return tuple(parts), text[at:], [*literals, (at, len(text))]


def points(
    spans: Sequence[Span], literals: Sequence[Span]
) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...] | None:
    """Spans of a rendering of marks as points of its parts; None if one begins or ends in text."""
    found: list[tuple[int, int]] = []
    for position in (position for span in spans for position in span):
        inside = [number for number, (start, stop) in enumerate(literals) if start <= position <= stop]
        if not inside:
            return None
        found.append((inside[0], position - literals[inside[0]][0]))
    return tuple(zip(found[::2], found[1::2], strict=True))
