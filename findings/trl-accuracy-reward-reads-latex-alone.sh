#!/usr/bin/env bash
# The accuracy_reward of TRL gives 0 for a right number that is neither boxed nor announced LaTeX, so that GRPO trains nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check trl==1.16.0 math-verify==0.9.0 torch==2.13.0 transformers==5.24.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
r"""trl 1.16.0 with math-verify: `accuracy_reward` looks for LaTeX in an answer, boxed or behind words as "the answer is". To the solution 42, "The answer is 42", "#### 42" as in GSM8K and
even "$42$" alone are as wrong as 7: a model that writes plain numbers gets 0 for all answers, all advantages are 0, and GRPO trains nothing. None, by which
a row is left out, is for solutions that cannot be read, and nothing is said. Have prompts ask for one box, or write the comparison.
"""

import logging
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)

from trl.rewards import accuracy_reward  # noqa: E402

right = {
    r"\boxed{42}": 1,
    r"The answer is $42$.": 1,
    r"The answer is \(42\).": 1,
    "The answer is 42.": 0,
    "The final answer is **42**": 0,
    "6 times 7 is 42\n#### 42": 0,
    "<answer>42</answer>": 0,
    "$42$": 0,
    "Thus $x = 42$.": 0,
}
print(f"trl {version('trl')}, math-verify {version('math-verify')}, reward of answers where the solution is 42:")
for answer, expected in right.items():
    (reward,) = accuracy_reward([[{"role": "assistant", "content": answer}]], ["42"])
    print(f"  {answer!r}: {reward:g}")
    assert reward == expected
(wrong,) = accuracy_reward([[{"role": "assistant", "content": "The answer is 7."}]], ["42"])
assert wrong == 0
PYTHON
