#!/usr/bin/env bash
# Two of nltk's smoothings give an exact answer a BLEU of 1.12, and one with two wrong words of twenty more than 1.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nltk==3.10.4
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""nltk 3.10.4: BLEU lies between 0 and 1. With `SmoothingFunction().method5` or `method7` every exact
answer of five words or more has 1.12, and a corpus of answers half of which have two wrong words of
twenty has 1.06. A score that is shown in percent, or taken from 1 as a distance or a loss, is then
beyond its bounds, and numbers of these methods can't stand beside those of others. Without smoothing,
and with methods 1 and 4, an exact answer has 1, and all others less. Nothing is said.
"""

from importlib.metadata import version

from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu, sentence_bleu

smoothing = SmoothingFunction()
right = [f"word{place}" for place in range(20)]
wrong = [*right[:18], "other", "words"]
print(f"nltk {version('nltk')}, BLEU of an exact answer of 5 words, of 20, with two wrong, and of a corpus of the last two:")
for name, expected in (
    ("method0", (1.0, 1.0, 0.891, 0.946)),
    ("method1", (1.0, 1.0, 0.891, 0.946)),
    ("method4", (1.0, 1.0, 0.891, 0.946)),
    ("method5", (1.117, 1.117, 1.006, 1.056)),
    ("method7", (1.117, 1.117, 1.006, 1.056)),
):
    method = getattr(smoothing, name)
    found = tuple(
        round(score, 3)
        for score in (
            sentence_bleu([right[:5]], right[:5], smoothing_function=method),
            sentence_bleu([right], right, smoothing_function=method),
            sentence_bleu([right], wrong, smoothing_function=method),
            corpus_bleu([[right], [right]], [right, wrong], smoothing_function=method),
        )
    )
    print(f"  {name}: {found}")
    assert found == expected
PYTHON
