#!/usr/bin/env bash
# In the Jinja of transformers.js no list equals another one, and the text "1" equals the number 1.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jinja2==3.1.6
cd "$folder"
echo '{"type": "module"}' > package.json
npm install --silent --no-audit --no-fund --save-exact @huggingface/jinja@0.5.11 > npm.log
cat > render.mjs <<'JAVASCRIPT'
import { readFileSync } from "fs";
import { Template } from "@huggingface/jinja";

const { template, values } = JSON.parse(readFileSync("asked.json"));
process.stdout.write(JSON.stringify(new Template(template).render(values)));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""@huggingface/jinja 0.5.11, the engine of transformers.js, compares with JavaScript's loose
equality: lists and objects are equal to themselves alone, `tools == []` is never true, and a
message is not equal to one with the same content. Text equals a number or a false that converts to
it. Python's Jinja, by which transformers renders, compares what is in them. So a branch of a chat
template is taken in the one and not in the other, and nothing is said.
"""

import json
import subprocess

import jinja2


def rendered(template, **values):
    with open("asked.json", "w") as file:
        json.dump({"template": template, "values": values}, file)
    script = subprocess.run(["node", "render.mjs"], check=True, capture_output=True, text=True)
    return jinja2.Template(template).render(**values), json.loads(script.stdout)


print("Jinja 3.1.6 and @huggingface/jinja 0.5.11:")
values = {"tools": [], "first": {"role": "user"}, "last": {"role": "user"}, "content": "", "number": "1", "off": False}
expected = {
    "tools == []": ("yes", "no"),
    "tools != []": ("no", "yes"),
    "first == last": ("yes", "no"),
    "content == off": ("no", "yes"),
    "number == 1": ("no", "yes"),
    "first.role == last.role": ("yes", "yes"),
    "content == ''": ("yes", "yes"),
}
for condition, wanted in expected.items():
    found = rendered("{% if " + condition + " %}yes{% else %}no{% endif %}", **values)
    print(f"  {condition}: {found}")
    assert found == wanted
PYTHON
