#!/usr/bin/env bash
# The package rouge gives an answer that repeats itself without end a full score.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rouge==1.0.1 rouge-score==0.1.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""rouge 1.0.1: of unigrams and of the longest common subsequence each distinct word counts once,
and the words that both texts have are met however often they stand there. An answer that repeats
the reference's words until its limit has a ROUGE-1 and ROUGE-L of 1, precision too; a model that
loops looks perfect. rouge-score, which counts words by their number, gives it a tenth.
"""

from importlib.metadata import version

from rouge import Rouge
from rouge_score import rouge_scorer

plain = rouge_scorer.RougeScorer(["rouge1", "rougeL"])
print(f"rouge {version('rouge')}, rouge-score {version('rouge-score')}, F1 of ROUGE-1 and ROUGE-L:")
for answer, reference, own, other in (
    ("the cat sat " * 20, "the cat sat", (1.0, 1.0), (0.095, 0.095)),
    ("yes yes yes yes", "yes", (1.0, 1.0), (0.4, 0.4)),
    ("four plus four is eight", "four is eight", (0.857, 0.857), (0.75, 0.75)),
    ("the cat sat", "the cat sat", (1.0, 1.0), (1.0, 1.0)),
    ("a dog", "the cat sat", (0.0, 0.0), (0.0, 0.0)),
):
    scores = Rouge().get_scores(answer.strip(), reference)[0]
    found = tuple(round(scores[name]["f"], 3) for name in ("rouge-1", "rouge-l"))
    counted = plain.score(reference, answer)
    others = tuple(round(counted[name].fmeasure, 3) for name in ("rouge1", "rougeL"))
    print(f"  {answer[:32].strip()!r} of {len(answer.split())} words for {reference!r}: {found}, rouge-score {others}")
    assert found == own and others == other
PYTHON
