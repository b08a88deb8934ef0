#!/usr/bin/env bash
# outlines-core takes "allOf" as one value behind the other, and so writes two objects where the schema asks for one.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""outlines-core 0.2.14: `allOf` in a JSON schema says that one value meets every part, as a model in pydantic that extends another is
often written. `build_regex_from_schema` puts the expressions of the parts in a row: a model held to it writes {"a":1}{"b":2}, which is
no JSON, and can write none of the objects that the schema allows. No error is raised.
"""

import json
import re
from importlib.metadata import version

import jsonschema
from outlines_core.json_schema import build_regex_from_schema


def object_with(key):
    """The schema of an object that has an integer under this key."""
    return {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}


schema = {"allOf": [object_with("a"), object_with("b")]}
expression = build_regex_from_schema(json.dumps(schema))
valid, joined = '{"a":1,"b":2}', '{"a":1}{"b":2}'
jsonschema.validate(json.loads(valid), schema)
try:
    json.loads(joined)
except json.JSONDecodeError as error:
    print(f"{joined} as JSON: {error}")
else:
    raise SystemExit("two objects in a row are JSON")
taken = {text: bool(re.fullmatch(expression, text)) for text in (valid, joined)}
print(f"outlines-core {version('outlines-core')} lets a model write:", taken)
assert taken == {valid: False, joined: True}
single = build_regex_from_schema(json.dumps({"allOf": [object_with("a")]}))
assert re.fullmatch(single, '{"a":1}'), "an allOf of one part comes out right"
PYTHON
