#!/usr/bin/env bash
# reasoning-gym gives 720 two thirds of the reward where the answer is 72, and more than to 72 in a sentence.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check reasoning-gym==0.1.25
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""reasoning-gym 0.1.25: a task without a rule of its own, as most with numbers, gives an answer
that has the right one somewhere in it the share of its letters that are the right one's. So 720,
172 and -72 get two thirds where 72 is right, and beside "True" "Not True" a half, while a sentence
around the right answer gets a tenth. Trained by this, a model is paid for numbers next to the right
ones, and for short ones most.
"""

from importlib.metadata import version

import reasoning_gym

found = {}
for name in ("lcm", "leg_counting", "simple_equations", "base_conversion"):
    tasks = reasoning_gym.create_dataset(name, size=50, seed=1)
    entry = next(entry for entry in tasks if len(entry["answer"]) == 2)
    forms = ("{}", "{}0", "1{}", "-{}", "{}.", "The answer is {}.")
    answers = [form.format(entry["answer"]) for form in forms]
    found[name] = [(answer, round(tasks.score_answer(answer, entry), 3)) for answer in answers]
courses = reasoning_gym.create_dataset("course_schedule", size=50, seed=1)
entry = next(entry for entry in courses if entry["answer"] == "True")
found["course_schedule"] = [(answer, courses.score_answer(answer, entry)) for answer in ("True", "Not True")]
print(f"reasoning-gym {version('reasoning-gym')}, rewards of answers:")
for name, scores in found.items():
    print(f"  {name}: {scores}")
    rewards = [reward for _, reward in scores]
    assert rewards == ([1, 0.5] if name == "course_schedule" else [1, 0.667, 0.667, 0.667, 0.667, 0.118])
PYTHON
