#!/usr/bin/env bash
# lm-format-enforcer lets a model write nothing but objects where a JSON schema chooses by "oneOf".
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lm-format-enforcer==0.11.3 jsonschema==4.26.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""lm-format-enforcer 0.11.3: a value that is "oneOf" an integer and null, as schemas of tools state optional arguments, is held to be an
object: {"v": {}} can be written, {"v": 1} and {"v": null} cannot. "anyOf" of the same two comes out right, and so does "oneOf" of
objects. No error is raised.
"""

import json
from importlib.metadata import version

import jsonschema
from lmformatenforcer import JsonSchemaParser


def writable(schema, text):
    """Whether a model held to the schema can write the text."""
    parser = JsonSchemaParser(schema)
    for character in text:
        if character not in parser.get_allowed_characters():
            return False
        parser = parser.add_character(character)
    return parser.can_end()


texts = ['{"v": 1}', '{"v": null}', '{"v": {}}']
print(f"lm-format-enforcer {version('lm-format-enforcer')}, what a model can write of", *texts)
for choice, expected in (("anyOf", [True, True, False]), ("oneOf", [False, False, True])):
    schema = {"type": "object", "properties": {"v": {choice: [{"type": "integer"}, {"type": "null"}]}}, "required": ["v"]}
    valid = [jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)) for text in texts]
    found = [writable(schema, text) for text in texts]
    print(f"  {choice}: {found}; the schema allows {valid}")
    assert found == expected and valid == [True, True, False]
kinds = [{"type": "object", "properties": {"k": {"const": name}}, "required": ["k"]} for name in "ab"]
schema = {"type": "object", "properties": {"v": {"oneOf": kinds}}, "required": ["v"]}
assert writable(schema, '{"v": {"k": "b"}}') and not writable(schema, '{"v": {"k": "c"}}')
PYTHON
