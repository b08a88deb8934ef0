#!/usr/bin/env bash
# lm-eval's BLEU, chrF and TER take of every row as many references as the row with the fewest has.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  lm-eval==0.4.13 sacrebleu==2.6.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""lm-eval 0.4.13: for BLEU, chrF and TER the references of all rows are laid side by side, and of
each row as many are taken as the row with the fewest has. One row with a single reference takes
the second one from all others: the scores of the same answers fall from 100 to below 20 here.
Which rows are in the run, as with `limit`, so changes what the others are compared with. Nothing
is said.
"""

from importlib.metadata import version

from lm_eval.api.metrics import bleu, chrf, ter

ANSWERS = ["the cat sat on the mat", "paris is the capital of france", "it is four times five now"]
OTHERS = ["a kitten was there", "the french have it as their main city", "twenty, as was said"]
rows = [([other, answer], answer) for other, answer in zip(OTHERS, ANSWERS, strict=True)]
single = ([OTHERS[0]], OTHERS[0])

print(f"lm-eval {version('lm-eval')}, BLEU, chrF and TER of answers that are all right:")
for name, items in (
    ("two references each", rows),
    ("and a row with one reference", [*rows, single]),
    ("and the same row with it twice", [*rows, ([OTHERS[0]] * 2, OTHERS[0])]),
):
    scores = [round(kind(items), 1) for kind in (bleu, chrf, ter)]
    print(f"  {name}: {scores}")
    if items[-1] is single:
        assert scores[0] < 50 and scores[1] < 60 and scores[2] > 60
    else:
        assert scores == [100.0, 100.0, 0.0]
PYTHON
