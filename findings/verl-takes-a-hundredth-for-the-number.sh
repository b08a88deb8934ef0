#!/usr/bin/env bash
# verl's reward for NuminaMath takes a hundredth of the right number, and a hundred times it, for right.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# What the rewards import; training itself asks for more.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.10.4 \
  tensordict==0.10.0 ray==2.60.0 omegaconf==2.4.0 pylatexenc==2.10
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps verl==0.9.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""verl 0.9.1: the reward that `default_compute_score` has for the data sources "numina_..." compares
two numbers as if either could be a percentage, whatever the question was: where 5 is right, 0.05
and 500 have the whole reward, as 5 has. And it lets one be off by a ten thousandth of it: 2024.1
is as good as 2024, and a whole number from 10,000 on as good as the next. Others have 0. A model
that is off by a hundred, as with a wrong unit, is trained to be so. The reward for MATH has 0 for
all of these.
"""

from importlib.metadata import version

from verl.utils.reward_score import default_compute_score

print(f"verl {version('verl')}, rewards of NuminaMath and MATH:")
for right, answer, wanted in (
    ("5", "5", (1.0, 1.0)),
    ("5", "6", (0.0, 0.0)),
    ("5", "50", (0.0, 0.0)),
    ("5", "0.05", (1.0, 0.0)),
    ("5", "500", (1.0, 0.0)),
    ("-3", "-300", (1.0, 0.0)),
    ("2024", "2024.1", (1.0, 0.0)),
    ("2024", "2025", (0.0, 0.0)),
    ("10080", "10081", (1.0, 0.0)),
):
    text = f"So the answer is \\boxed{{{answer}}}."
    rewards = tuple(default_compute_score(source, text, right) for source in ("numina_olympiads", "lighteval/MATH"))
    print(f"  {answer} where {right} is right: {rewards}")
    assert rewards == wanted, (answer, right)
PYTHON
