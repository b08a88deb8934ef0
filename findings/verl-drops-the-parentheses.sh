#!/usr/bin/env bash
# verl's reward for NuminaMath leaves out parentheses and braces: 2(x + 3) is 2x + 3, and -(x - 1) is -x - 1.
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
"""verl 0.9.1: the reward that `default_compute_score` has for the data sources "numina_..." takes an
answer for right where it is the same text as the right one without parentheses and braces, before
it looks at what the two mean. So it gives the whole reward for the commonest slips of algebra: a
factor or a sign that reaches the first term alone, an exponent, root or fraction that ends too early.
Other wrong answers have 0, as have these from the reward for MATH.
"""

from importlib.metadata import version

from verl.utils.reward_score import default_compute_score

print(f"verl {version('verl')}, rewards of NuminaMath and MATH:")
for right, answer, wanted in (
    ("2(x+3)", "2(x+3)", (1.0, 1.0)),
    ("2(x+3)", "2x+4", (0.0, 0.0)),
    ("2(x+3)", "2x+3", (1.0, 0.0)),
    ("-(x-1)", "-x-1", (1.0, 0.0)),
    ("(x+1)^2", "x+1^2", (1.0, 0.0)),
    ("2^{n+1}", "2^n+1", (1.0, 0.0)),
    ("\\sqrt{x+1}", "\\sqrt{x}+1", (1.0, 0.0)),
    ("\\frac{x}{y+1}", "\\frac{x}{y}+1", (1.0, 0.0)),
    ("(1,2]", "(1,2)", (1.0, 0.0)),
):
    text = f"So the answer is \\boxed{{{answer}}}."
    rewards = tuple(default_compute_score(source, text, right) for source in ("numina_olympiads", "lighteval/MATH"))
    print(f"  {answer} where {right} is right: {rewards}")
    assert rewards == wanted, (answer, right)
PYTHON
