#!/usr/bin/env bash
# In outlines-core, what a pattern takes for any character may be the quote that ends the text.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""outlines-core 0.2.14 takes a pattern of a JSON schema as the text's form in JSON itself: where it says any character but a comma, or
up to nine of any kind, a model can write a quote as it is, or the end of a line, and what it has written is no JSON. Texts without a
pattern come out right: in them a quote stands behind a backslash.
"""

import json
import re
from importlib.metadata import version

import jsonschema
from outlines_core.json_schema import build_regex_from_schema


def readable(text):
    """Whether the text is JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


print(f"outlines-core {version('outlines-core')}, whether a model can write a text, and whether it is JSON:")
cases = [({"pattern": "^.{1,9}$"}, '"x"y"'), ({"pattern": "^[^,]+$"}, '"x"y"'), ({"pattern": "^[^,]+$"}, '"x\ny"'), ({}, '"x"y"'), ({}, '"x\ny"')]
for more, text in cases:
    schema = {"type": "string", **more}
    jsonschema.validate('x"y', schema)
    taken = bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), text))
    print(f"  {more}, {text!r}: {taken}, {readable(text)}")
    assert taken == bool(more) and not readable(text)
PYTHON
