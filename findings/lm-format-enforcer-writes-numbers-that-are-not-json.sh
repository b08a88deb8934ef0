#!/usr/bin/env bash
# Under any JSON schema with a number, lm-format-enforcer lets a model write one that JSON does not have.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lm-format-enforcer==0.11.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""lm-format-enforcer 0.11.3 refuses a number that ends behind its point, 1. or .5, but lets an exponent follow the point: {"v": 1.e5}. No
JSON reader takes that. Python's and C's formats of numbers do, so models have seen it.
"""

import json
from importlib.metadata import version

from lmformatenforcer import JsonSchemaParser


def writable(schema, text):
    """Whether a model held to the schema can write the text."""
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


def readable(text):
    """Whether the text is JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True


schema = {"type": "object", "properties": {"v": {"type": "number"}}, "required": ["v"]}
print(f"lm-format-enforcer {version('lm-format-enforcer')}, what a model can write, and what is JSON:")
for number, expected in (("1.5e5", (True, True)), ("1.", (False, False)), (".5", (False, False)), ("1.e5", (True, False)), ("-0.e1", (True, False))):
    text = f'{{"v": {number}}}'
    found = (writable(schema, text), readable(text))
    print(f"  {text}:", *found)
    assert found == expected
assert float("1.e5") == 1e5
PYTHON
