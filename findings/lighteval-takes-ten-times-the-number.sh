#!/usr/bin/env bash
# lighteval's quasi exact match takes 35 for 3.5, 5 for -5, and a full stop for A.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lighteval==0.13.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""lighteval 0.13.0: `helm_normalizer`, by which the quasi exact match and F1 of HELM and DROP
compare texts, takes out signs and points before it looks for numbers, also inside of them. 3.5 is
35.0, as 35 is; -5 is 5.0; 0.50 is 50.0. And the article "a" goes whatever it is for: the choice "A"
is the empty text, and a full stop or a space is right.
"""

from importlib.metadata import version

from lighteval.metrics.metrics_sample import ExactMatches
from lighteval.metrics.normalizations import helm_normalizer

match = ExactMatches(normalize_gold=helm_normalizer, normalize_pred=helm_normalizer)
print(f"lighteval {version('lighteval')}, wanted, answer, as compared, score:")
expected = {
    ("3.5", "35"): 1,
    ("3.5", "3.50"): 0,
    ("-5", "5"): 1,
    ("0.50", "50"): 1,
    ("1,000", "1000"): 1,
    ("5", "6"): 0,
    ("A", "."): 1,
    ("A", "B"): 0,
}
for (wanted, answer), score in expected.items():
    found = match.compute_one_item(wanted, answer)
    print(f"  {wanted!r}, {answer!r}: {helm_normalizer(wanted)!r}, {helm_normalizer(answer)!r}: {found}")
    assert found == score
PYTHON
