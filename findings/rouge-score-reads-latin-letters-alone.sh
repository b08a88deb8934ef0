#!/usr/bin/env bash
# rouge-score gives an exact answer in Russian or Chinese 0, and two unlike ones 1.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check rouge-score==0.1.2 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""rouge-score 0.1.2: its tokenizer keeps the letters a to z and digits and takes all else for
space. A text in any other script has no words: ROUGE of the same text twice is 0. Where a number
stands in it, the number is all that is compared, and unlike texts have 1. Accents split words:
"naïve" is "na" and "ve". Signs and points go too: -5 has 1 against 5.
"""

from importlib.metadata import version

from rouge_score.rouge_scorer import RougeScorer


def rouge(wanted, answer):
    scores = RougeScorer(["rouge1", "rougeL"]).score(wanted, answer)
    return {name: round(float(score.fmeasure), 2) for name, score in scores.items()}


print(f"rouge-score {version('rouge-score')}, wanted, answer, F measures:")
expected = {
    ("the answer is right", "the answer is right"): 1,
    ("ответ верный", "ответ верный"): 0,
    ("答案正确", "答案正确"): 0,
    ("да, 5 раз", "нет, 5 дней"): 1,
    ("naïve", "na ve"): 1,
    ("-5", "5"): 1,
}
for (wanted, answer), score in expected.items():
    print(f"  {wanted}, {answer}: {rouge(wanted, answer)}")
    assert set(rouge(wanted, answer).values()) == {score}
PYTHON
