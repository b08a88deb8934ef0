#!/usr/bin/env bash
# jiwer takes the words on both sides of a line end for one, and so finds errors where none are.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jiwer==4.0.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""jiwer 4.0.0: `wer` and `process_words` cut texts into words at spaces alone. Words on both sides
of a line end, a tab or a no-break space are one word: the same ten words on five lines have an
error rate of 80 %, and with tabs of 100 %. Spaces that follow each other and those around a text
make no difference, so that one expects it of other white space.
"""

from importlib.metadata import version

import jiwer

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
PLAIN = " ".join(WORDS)
print(f"jiwer {version('jiwer')}, error rate of the same ten words, and words counted in the answer:")
for name, text, rate, count in (
    ("spaces", PLAIN, 0.0, 10),
    ("more spaces", "  " + "   ".join(WORDS) + " ", 0.0, 10),
    ("five lines", "\n".join(f"{a} {b}" for a, b in zip(WORDS[::2], WORDS[1::2], strict=True)), 0.8, 6),
    ("tabs", "\t".join(WORDS), 1.0, 1),
    ("no-break spaces", "\u00a0".join(WORDS), 1.0, 1),
):
    output = jiwer.process_words(PLAIN, text)
    print(f"  {name}: {output.wer}, {len(output.hypotheses[0])} words")
    assert abs(output.wer - rate) < 1e-9 and len(output.hypotheses[0]) == count
PYTHON
