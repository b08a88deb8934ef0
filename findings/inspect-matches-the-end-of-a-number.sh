#!/usr/bin/env bash
# inspect-ai's match takes 14 for the answer 4, and 0.1 for 1.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check inspect-ai==0.3.285
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""inspect-ai 0.3.285: the scorer `match()` asks whether the output ends with the target, letter by letter and not word by word. An output
of 14, or of -4, is right where 4 is asked for, and 1.5 where 5 is; `includes()` finds it in 145 too. `match(numeric=True)` compares
numbers; unless asked for, scores of arithmetic are too high.
"""

import asyncio
from importlib.metadata import version

from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Target, exact, includes, match
from inspect_ai.solver import TaskState

scorers = {"match()": match(), "match(numeric=True)": match(numeric=True), "includes()": includes(), "exact()": exact()}


def scores(output, target):
    state = TaskState(
        model="mockllm/model", sample_id=1, epoch=1, input="", messages=[], output=ModelOutput.from_content("mockllm/model", output)
    )
    return {name: asyncio.run(scorer(state, Target(target))).value for name, scorer in scorers.items()}


print(f"inspect-ai {version('inspect-ai')}, output, target: scores (C is correct)")
for output, target, by_match in (
    ("The answer is 14", "4", "C"),
    ("The answer is -4", "4", "C"),
    ("The answer is 0.1", "1", "C"),
    ("The answer is 145", "4", "I"),
    ("The answer is 4", "4", "C"),
    ("The answer is 5", "4", "I"),
):
    found = scores(output, target)
    print(f"  {output!r}, {target!r}: {found}")
    right = output.endswith(f" {target}")
    assert found["match()"] == by_match and found["includes()"] == ("C" if target in output else "I")
    assert found["match(numeric=True)"] == ("C" if right else "I")
PYTHON
