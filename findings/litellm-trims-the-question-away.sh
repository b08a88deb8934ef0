#!/usr/bin/env bash
# litellm's trim_messages drops the question and keeps the system message, beyond the limit it is given.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
cd "$folder"
env -u PYTHONPATH LITELLM_LOCAL_MODEL_COST_MAP=True "$folder/venv/bin/python" - <<'PYTHON'
"""litellm 1.110.2: `trim_messages` keeps the system message before all others. Where that takes the limit, what is left has no message of the
user, so that a model answers nothing that was asked; and where the limit is far below it, the whole system message comes back, six times
as long as the limit. A little more room keeps the last question. Nothing is said.
"""

from importlib.metadata import version

import litellm
from litellm.utils import trim_messages

messages = [
    {"role": "system", "content": "You are " + "very " * 50},
    {"role": "user", "content": "A first question. " * 20},
    {"role": "assistant", "content": "An answer. " * 20},
    {"role": "user", "content": "And the last question?"},
]


def count(given):
    return litellm.token_counter(model="gpt-4", messages=given)


print(f"litellm {version('litellm')}, tokens of the system message {count(messages[:1])}, of the last question {count(messages[-1:])}:")
for limit, wanted in ((10, ["system"]), (40, ["system"]), (60, ["system"]), (120, ["system", "user"]), (1000, [message["role"] for message in messages])):
    left = trim_messages([dict(message) for message in messages], model="gpt-4", max_tokens=limit)
    print(f"  limit {limit}: {[message['role'] for message in left]}, {count(left)} tokens")
    assert left[0]["role"] == "system" and (left[-1]["content"] == messages[-1]["content"]) == (limit >= 120)
    assert limit >= 120 or [message["role"] for message in left] == wanted
    assert (count(left) > limit) == (limit == 10)
PYTHON
