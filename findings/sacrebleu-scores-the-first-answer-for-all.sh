#!/usr/bin/env bash
# sacrebleu scores the first answer alone where references are lists by answer, and says nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check sacrebleu==2.6.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""sacrebleu 2.6.0: `corpus_bleu`, `corpus_chrf` and `corpus_ter` score answers and references side
by side, as far as the shorter list of them goes, and say nothing of the rest. References written
by answer, a list for each as in Hugging Face's `evaluate`, are taken for as many sets of
references for the first answer: the score of a whole test is that of its first row. The functions
want a list for each set. A run that broke off, and has fewer references, is scored by what it has.
"""

from importlib.metadata import version

import sacrebleu

ANSWERS = ["the cat sat on the mat today", "no idea at all", "wrong words are written here"]
WANTED = ["the cat sat on the mat today", "it is four times five", "paris is the capital of france"]


def scores(references):
    kinds = (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter)
    return tuple(round(kind(ANSWERS, references).score, 1) for kind in kinds)


print(f"sacrebleu {version('sacrebleu')}, BLEU, chrF and TER of three answers, the first one right:")
for name, references, first in (
    ("one set of three references", [WANTED], False),
    ("a list for each answer", [[one] for one in WANTED], True),
    ("one reference", [WANTED[:1]], True),
):
    found = scores(references)
    print(f"  {name}: {found}")
    assert (found == (100.0, 100.0, 0.0)) == first
    assert first or (found[0] < 60 and found[1] < 60 and found[2] > 40)
PYTHON
