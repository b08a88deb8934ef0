#!/usr/bin/env bash
# torchmetrics gives a short answer that is exactly right a chrF far below 1.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0 sacrebleu==2.6.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchmetrics 1.9.0: chrF is a mean over lengths of up to six characters and two words. Lengths that a text is too short to have count
as 0 in it: the answer "Paris" to "Paris" has 0.75, "42" has 0.375. sacrebleu, which the metric is taken from, leaves such lengths out
and gives 100 of 100. A mean over short answers falls with how short they are.
"""

from importlib.metadata import version

import sacrebleu
from torchmetrics.text import CHRFScore

print(f"torchmetrics {version('torchmetrics')} and sacrebleu {version('sacrebleu')}, chrF++ of an answer that is the reference itself:")
for answer, expected in (("42", 0.375), ("yes", 0.5), ("Paris", 0.75), ("the Eiffel tower", 1.0)):
    ours = CHRFScore()([answer], [[answer]]).item()
    alone = CHRFScore(return_sentence_level_score=True)([answer, answer], [[answer], [answer]])[1]
    theirs = sacrebleu.sentence_chrf(answer, [answer], word_order=2).score
    print(f"  {answer}: {ours:.3f}, {theirs / 100:.3f}")
    assert abs(ours - expected) < 1e-4 and abs(theirs - 100) < 1e-4
    assert all(abs(score.item() - expected) < 1e-4 for score in alone)
PYTHON
