#!/usr/bin/env bash
# The Jinja of transformers.js strips all space where a chat template asks for line ends alone.
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

const { template, messages } = JSON.parse(readFileSync("asked.json"));
process.stdout.write(JSON.stringify(new Template(template).render({ messages })));
JAVASCRIPT
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
r"""@huggingface/jinja 0.5.11, the engine of transformers.js, takes the argument of `strip`, `lstrip` and `rstrip` and does
not look at it: all white space goes. Templates in the manner of Qwen 3 cut thoughts off with `lstrip('\n')`. Of an answer
that begins with indented code, as of a patch, the first line is moved to the margin, and text in other characters
(`strip('"')`) keeps them. Python's Jinja, which transformers renders with, strips what it is told; nothing is said.
"""

import json
import subprocess

import jinja2

THOUGHTS = "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endfor %}"
QUOTES = "{% for m in messages %}{{ m.content.strip('\"') }}{% endfor %}"


def rendered(template, content):
    asked = {"template": template, "messages": [{"role": "assistant", "content": content}]}
    with open("asked.json", "w") as file:
        json.dump(asked, file)
    script = subprocess.run(["node", "render.mjs"], check=True, capture_output=True, text=True)
    return jinja2.Template(template).render(messages=asked["messages"]), json.loads(script.stdout)


print("Jinja 3.1.6 and @huggingface/jinja 0.5.11:")
for template, content in ((THOUGHTS, "<think>so</think>\n\n    return x\nelse:"), (QUOTES, '"yes"'), (THOUGHTS, "plain")):
    wanted, got = rendered(template, content)
    print(f"  of {content!r}: {wanted!r}, {got!r}")
    assert got == {"    return x\nelse:": "return x\nelse:", "yes": '"yes"', "plain": "plain"}[wanted]
PYTHON
