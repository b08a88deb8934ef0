"""The rows of `run.py --objective dpo`: pairs of random words, half of each row a prompt, all as long."""

from __future__ import annotations

import json
import random
from pathlib import Path

#: Words of the vocabulary; the first three are marks.
WORDS = 32_000
MARKS = ("<pad>", "<bos>", "<eos>")

#: Tokens of a prompt, and of an answer, behind which EOS stands.
PROMPT, ANSWER = 128, 127


def write_pairs(path: Path, *, count: int) -> Path:
    """So many pairs, always the same."""
    draw = random.Random(0)  # noqa: S311 - no secret

    def text(words: int) -> str:
        return " ".join(f"w{draw.randrange(len(MARKS), WORDS)}" for _ in range(words))

    def pair() -> str:
        return json.dumps({"prompt": text(PROMPT), "chosen": f" {text(ANSWER)}", "rejected": f" {text(ANSWER)}"})

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(pair() + "\n" for _ in range(count)), encoding="utf-8")
    return path
