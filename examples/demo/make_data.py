"""Writes the demo's data sets: questions about a small closed world, some answered as YAML, some in two ways.

The world is small enough for a model of a few million parameters to learn from nothing in about a minute on
two CPU cores. The rows are committed beside this file; a test writes them again and compares every byte.

    python examples/demo/make_data.py            # writes examples/demo/data/*.jsonl
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from questions import Question, World, all_questions, read_world

SEED = 20
NUM_YAML_ROWS = 600
NUM_PAIRS = 400
DATA = Path(__file__).parent / "data"


def records(world: World) -> Iterator[dict[str, str]]:
    """Rows that show what YAML looks like, so that task two teaches a habit and not a language."""
    for animal, facts in world.animals.items():
        for fact, value in facts.items():
            yield _record({"topic": "animals", "name": animal, fact: value})
    for colour, things in world.colours.items():
        for thing in things:
            yield _record({"topic": "colours", "name": thing, "answer": colour})


def as_yaml(record: dict[str, str]) -> str:
    """A mapping on one line. Words keep the space before them, and so their tokens, wherever they stand."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in record.items()) + "}"


def _record(record: dict[str, str]) -> dict[str, str]:
    words = ", ".join(f"{key} {value}" for key, value in record.items())
    return {"instruction": "Write this as YAML.", "input": words, "output": as_yaml(record)}


def basics_row(question: Question) -> dict[str, str]:
    """Task one: instruction, input, output; the answer is a sentence."""
    return {"instruction": question.text, "input": question.given, "output": question.sentence}


def yaml_row(question: Question) -> dict[str, list[dict[str, str]]]:
    """Task two: a chat; the answer is a YAML mapping."""
    prompt = f"{question.text}\n\n{question.given}" if question.given else question.text
    answer = as_yaml({"topic": question.topic, "answer": question.answer})
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]}


def preference_row(question: Question) -> dict[str, list[dict[str, str]]]:
    """Two answers to a question, of which the short one is preferred to the sentence."""
    prompt = f"{question.text}\n\n{question.given}" if question.given else question.text
    sides = {"chosen": question.answer, "rejected": question.sentence}
    answers = {side: [{"role": "assistant", "content": text}] for side, text in sides.items()}
    return {"prompt": [{"role": "user", "content": prompt}], **answers}


def make_rows() -> dict[str, list[dict[str, object]]]:
    """The data sets by file name, in a fixed shuffled order."""
    source = random.Random(SEED)
    world = read_world()
    questions = all_questions(world)
    basics: list[dict[str, object]] = [dict(basics_row(question)) for question in questions]
    basics += [dict(row) for row in records(world)]
    source.shuffle(basics)
    answers: list[dict[str, object]] = [dict(yaml_row(q)) for q in source.sample(questions, NUM_YAML_ROWS)]
    pairs: list[dict[str, object]] = [dict(preference_row(q)) for q in source.sample(questions, NUM_PAIRS)]
    return {"basics.jsonl": basics, "yaml_answers.jsonl": answers, "preferences.jsonl": pairs}


def main(folder: Path) -> None:
    """Writes one JSONL file per data set."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in make_rows().items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")
        print(f"{folder / name}: {len(rows)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
