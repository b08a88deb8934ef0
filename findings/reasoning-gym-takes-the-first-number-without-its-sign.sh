#!/usr/bin/env bash
# To reasoning-gym's GSM questions, -288 is 288, and 1,250 is 1.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check reasoning-gym==0.1.25
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""reasoning-gym 0.1.25: "gsm_symbolic" takes the first number of an answer, and what it takes for a
number begins at the border of a word, behind a minus, and ends at a comma. The negative of the
right answer has the whole reward, and so have guesses that begin with it; the right answer with a
comma in its thousands, or behind what it was computed from, has a hundredth. The questions have
whole, positive answers, of which one in eight is above 999.
"""

from importlib.metadata import version

import reasoning_gym

tasks = reasoning_gym.create_dataset("gsm_symbolic", size=200, seed=1)
small = next(entry for entry in tasks if 100 < int(entry["answer"]) < 1000)
large = next(entry for entry in tasks if 1000 < int(entry["answer"]) < 1_000_000)
print(f"reasoning-gym {version('reasoning-gym')}, rewards of answers:")
for entry, form, expected in (
    (small, "{}", 1.0),
    (small, "-{}", 1.0),
    (small, "{} or 5", 1.0),
    (small, "5 or {}", 0.01),
    (small, "2 * 3 + 1 = {}", 0.01),
    (large, "{}", 1.0),
    (large, "{:,}", 0.01),
):
    answer = form.format(int(entry["answer"]))
    reward = tasks.score_answer(answer, entry)
    print(f"  {answer}: {reward}")
    assert reward == expected
PYTHON
