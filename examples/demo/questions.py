"""Questions about a small closed world: facts out of world.toml, and rules about numbers and letters."""

from __future__ import annotations

import itertools
import string
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question with its answer in both styles.

    Attributes:
        given: what the question is asked about, where it is not part of the sentence.
        sentence: the answer as task one gives it.
        answer: the answer in one word or a few, as task two gives it inside JSON.
    """

    topic: str
    text: str
    given: str = ""
    sentence: str
    answer: str


#: Every way a thing is asked; where a way is left out of the training rows, the others teach it.
PHRASINGS = {
    "opposites": (
        "What is the opposite of {}?",
        "Give the opposite of {}.",
        "Name the opposite of {}.",
        "Say the opposite of {}.",
    ),
    "colours": (
        "What colour is {}?",
        "Name the colour of {}.",
        "Give the colour of {}.",
        "Say the colour of {}.",
    ),
    "sound": ("What sound does a {} make?", "Name the sound of a {}.", "Give the sound of a {}."),
    "young": ("What is a young {} called?", "Name the young of a {}.", "Give the young of a {}."),
    "legs": ("How many legs has a {}?", "Count the legs of a {}.", "Give the number of legs of a {}."),
    "neighbours": (
        "Which {} comes {} {}?",
        "Name the {} {} {}.",
        "Give the {} {} {}.",
        "Say the {} {} {}.",
    ),
    "sums": ("What is {} + {}?", "Add {} and {}.", "How much is {} + {}?"),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """The facts of world.toml; the keys of `animals` are sound, young and legs."""

    opposites: list[tuple[str, str]]
    colours: dict[str, list[str]]
    animals: dict[str, dict[str, str]]
    days: list[str]
    months: list[str]
    numbers: list[str]


def read_world() -> World:
    """The facts beside this file."""
    return World(**tomllib.loads((Path(__file__).parent / "world.toml").read_text(encoding="utf-8")))


def _ask(topic: str, *words: object, sentence: str, answer: object, kind: str = "") -> Iterator[Question]:
    """One question in every phrasing of its kind."""
    for phrasing in PHRASINGS[kind or topic]:
        yield Question(topic=topic, text=phrasing.format(*words), sentence=sentence, answer=str(answer))


def opposites(world: World) -> Iterator[Question]:
    """Both directions."""
    for pair in world.opposites:
        for word, other in (pair, reversed(pair)):
            yield from _ask("opposites", word, sentence=f"The opposite of {word} is {other}.", answer=other)


def colours(world: World) -> Iterator[Question]:
    """Things by colour."""
    for colour, things in world.colours.items():
        for thing in things:
            yield from _ask("colours", thing, sentence=f"The colour of {thing} is {colour}.", answer=colour)


def animals(world: World) -> Iterator[Question]:
    """Sounds, young and legs."""
    for animal, facts in world.animals.items():
        sentences = {
            "sound": f"The sound of a {animal} is {facts['sound']}.",
            "young": f"A young {animal} is called a {facts['young']}.",
            "legs": f"A {animal} has {facts['legs']} legs.",
        }
        for fact, sentence in sentences.items():
            yield from _ask("animals", animal, kind=fact, sentence=sentence, answer=facts[fact])


def _neighbours(topic: str, noun: str, ring: Sequence[str]) -> Iterator[Question]:
    for index, name in enumerate(ring):
        for word, other in (("after", ring[(index + 1) % len(ring)]), ("before", ring[index - 1])):
            sentence = f"The {noun} {word} {name} is {other}."
            yield from _ask(topic, noun, word, name, kind="neighbours", sentence=sentence, answer=other)


def calendar(world: World) -> Iterator[Question]:
    """The day or month before and after."""
    yield from _neighbours("calendar", "day", world.days)
    yield from _neighbours("calendar", "month", world.months)


def letters(_: World) -> Iterator[Question]:
    """The letter before and after, the alphabet being a ring."""
    yield from _neighbours("letters", "letter", string.ascii_lowercase)


def numbers(world: World) -> Iterator[Question]:
    """Figures to words and back."""
    for value, word in enumerate(world.numbers):
        for kind, given, answer in (("words", str(value), word), ("figures", word, str(value))):
            text, sentence = f"Write this number in {kind}.", f"{given} is {answer}."
            yield Question(topic="numbers", text=text, given=given, sentence=sentence, answer=answer)


def sums(_: World) -> Iterator[Question]:
    """Sums of two numbers up to seven."""
    for first in range(8):
        for second in range(8):
            total = first + second
            yield from _ask("sums", first, second, sentence=f"{first} + {second} = {total}.", answer=total)


def counting(_: World) -> Iterator[Question]:
    """Short runs of whole numbers."""
    for start in range(10):
        for length in range(3, 7):
            run = " ".join(str(value) for value in range(start, start + length))
            text = f"Count from {start} to {start + length - 1}."
            yield Question(topic="counting", text=text, sentence=f"{run}.", answer=run)


def comparing(_: World) -> Iterator[Question]:
    """The larger or smaller of two numbers up to nine."""
    for first, second in itertools.permutations(range(10), 2):
        word, pick = ("larger", max) if (first + second) % 2 else ("smaller", min)
        answer = str(pick(first, second))
        text, sentence = f"Which is {word}, {first} or {second}?", f"The {word} one is {answer}."
        yield Question(topic="comparing", text=text, sentence=sentence, answer=answer)


def all_questions(world: World) -> list[Question]:
    """Every question of the world, topic by topic."""
    facts = (opposites, colours, animals, calendar, letters, numbers)
    rules = (sums, counting, comparing)
    return [question for topic in facts + rules for question in topic(world)]
