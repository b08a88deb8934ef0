#!/usr/bin/env bash
# Chat templates that minijinja renders write a tool's "a < b" with escapes for HTML.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check minijinja==3.1.0 transformers==5.23.0 jinja2==3.1.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""minijinja 3.1.0: `tojson` writes <, >, & and the single quote as escapes for HTML, and 1e-07 as
1e-7; the one that transformers renders chat templates with is Python's `json.dumps`, which leaves
them as they are. A tool with "a < b" or "it's" in its description stands in the prompt otherwise
than in training. Numbers outside of JSON differ as well: `{{ x }}` writes 1e-07 and 1e+16 out.
"""

import json
from importlib.metadata import version

import minijinja
from transformers.utils.chat_template_utils import render_jinja_template

VALUES = ["a < b & c > d", "it's", "5 °C", {"b": 1, "a": [True, None]}, 0.0000001, 1.5]
TEMPLATE = "{{ messages[0].content | tojson }}"
PLAIN = "{{ messages[0].content }}"
OTHER = {0, 1, 4}


def rendered(template, value):
    messages = [{"role": "tool", "content": value}]
    wanted = render_jinja_template([messages], chat_template=template)[0][0]
    return wanted, minijinja.Environment().render_str(template, messages=messages)


print(f"minijinja {version('minijinja')}, transformers {version('transformers')}:")
for place, value in enumerate(VALUES):
    wanted, found = rendered(TEMPLATE, value)
    print(f"  tojson of {value!r}: transformers {wanted}, minijinja {found}")
    assert wanted == json.dumps(value, ensure_ascii=False)
    assert (found != wanted) == (place in OTHER)
    assert json.loads(found) == value
for value, text in ((1e-07, "0.0000001"), (1e16, "10000000000000000.0"), (0.25, "0.25")):
    wanted, found = rendered(PLAIN, value)
    print(f"  {value!r}: transformers {wanted}, minijinja {found}")
    assert wanted == str(value) and found == text
PYTHON
