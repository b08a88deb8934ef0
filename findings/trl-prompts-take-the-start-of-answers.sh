#!/usr/bin/env bash
# TRL's implicit prompt takes the first letters of the answers, and trains the rest of a word.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check trl==1.16.0 torch==2.13.0 transformers==5.23.0
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""trl 1.16.0: where a preference row has no "prompt", `extract_prompt` takes what "chosen" and
"rejected" have in common for it, letter by letter. The answers 45 and 46 become 5 and 6 after a
prompt that ends in 4; of "blue" and "black" the model learns "ue" and "ack". Tokens at the cut are
other ones than where the model answers from the question on, and the part that both answers begin
with, as a whole first sentence, is not trained at all.
"""

from importlib.metadata import version

from trl import extract_prompt

print(f"trl {version('trl')}:")
for chosen, rejected, prompt in (
    ("The sky is blue.", "The sky is black.", "The sky is bl"),
    ("2 * 23 - 1? 45", "2 * 23 - 1? 46", "2 * 23 - 1? 4"),
    ("Is 7 prime? Yes. It is odd.", "Is 7 prime? Yes. It is even.", "Is 7 prime? Yes. It is"),
    ("Is 9 prime? No", "Is 9 prime? Yes", "Is 9 prime?"),
):
    found = extract_prompt({"chosen": chosen, "rejected": rejected})
    print(f"  {chosen!r} and {rejected!r}: {found}")
    assert found["prompt"] == prompt
    assert all(found["prompt"] + found[key] == text for key, text in (("chosen", chosen), ("rejected", rejected)))
PYTHON
