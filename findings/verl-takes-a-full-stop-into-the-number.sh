#!/usr/bin/env bash
# verl's rewards for GSM8K and DAPO take the full stop behind a right answer into the number, and give it nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
# What the rewards import; training itself asks for more.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 transformers==5.10.4 \
  tensordict==0.10.0 ray==2.60.0 omegaconf==2.4.0
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps verl==0.9.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""verl 0.9.1: `default_compute_score` cuts a number out of an answer and compares it as text with
the right one. To the rewards of GSM8K and of DAPO (and AIME) "72." is another number than 72, and
so are 72.0 and a 72 in bold: GSM8K gives 0 and DAPO -1, as for a wrong answer. GSM8K gives 1 to
"72, I think" and 0 to $72; DAPO takes "$72$.", with the stop behind the formula and "72 dollars".
Neither looks further back than 300 letters.
"""

from importlib.metadata import version

from verl.utils.reward_score import default_compute_score

print(f"verl {version('verl')}, rewards of GSM8K and DAPO where 72 is right:")
for form, in_gsm8k, in_dapo in (
    ("72", 1.0, 1.0),
    ("73", 0.0, -1.0),
    ("72.", 0.0, -1.0),
    ("72.0", 0.0, -1.0),
    ("**72**", 0.0, -1.0),
    ("$72", 0.0, 1.0),
    ("$72$.", 0.0, 1.0),
    ("72 dollars", 1.0, 1.0),
    ("72, I think", 1.0, -1.0),
    ("72\n" + "As a check, 72 - 2 is 70. " * 12, 0.0, -1.0),
):
    found = (
        default_compute_score("openai/gsm8k", f"So 70 + 2 = 72.\n#### {form}", "72"),
        default_compute_score("math_dapo", f"So 70 + 2 = 72.\nAnswer: {form}", "72")["score"],
    )
    print(f"  {form[:20]!r}: {found}")
    assert found == (in_gsm8k, in_dapo), (form, found)
PYTHON
