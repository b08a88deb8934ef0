#!/usr/bin/env bash
# The Jinja of transformers.js writes true, nothing and JSON where Python writes True, None and single quotes.
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
"""@huggingface/jinja 0.5.11, the engine of transformers.js, prints values as JavaScript has them: a
yes in the arguments of a call is `true` and not `True`, a missing one is empty and not `None`, and
lists and objects are JSON. Chat templates that print arguments without `tojson`, as those for calls
in the manner of Python, give the model another prompt than transformers does, which renders with
Python's Jinja. Nothing is said.
"""

import json
import subprocess

import jinja2

CALL = "{% for name, value in call.items() %}{{ name }}={{ value }} {% endfor %}"
JSON = "{% for name, value in call.items() %}{{ name }}={{ value | tojson }} {% endfor %}"


def rendered(template, **values):
    with open("asked.json", "w") as file:
        json.dump({"template": template, "values": values}, file)
    script = subprocess.run(["node", "render.mjs"], check=True, capture_output=True, text=True)
    return jinja2.Template(template).render(**values), json.loads(script.stdout)


print("Jinja 3.1.6 and @huggingface/jinja 0.5.11:")
call = {"metric": True, "unit": None, "days": 3, "places": ["Rome", "Oslo"], "at": {"hour": 9}}
plain, written = rendered(CALL, call=call), rendered(JSON, call=call)
for one, two in (plain, written):
    print(f"  {one!r}\n  {two!r}")
assert plain[0] == "metric=True unit=None days=3 places=['Rome', 'Oslo'] at={'hour': 9} "
assert plain[1] == 'metric=true unit= days=3 places=["Rome", "Oslo"] at={"hour": 9} '
assert written[0] == written[1]
PYTHON
