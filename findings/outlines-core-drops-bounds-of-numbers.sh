#!/usr/bin/env bash
# outlines-core leaves the bounds of numbers out of a JSON schema, and says nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""outlines-core 0.2.14 raises an error for a part of a JSON schema that it cannot follow ("not"), and holds texts to their lengths and
arrays to theirs. `minimum`, `maximum`, their exclusive forms and `multipleOf` it leaves out without a word: the expression of a mark
from 1 to 5 is that of any integer, so what a model writes under it need not meet the schema.
"""

import json
import re
from importlib.metadata import version

import jsonschema
from outlines_core.json_schema import build_regex_from_schema

plain = {kind: build_regex_from_schema(json.dumps({"type": kind})) for kind in ("integer", "number")}
cases = [
    ({"type": "integer", "minimum": 1, "maximum": 5}, "-90"),
    ({"type": "number", "exclusiveMinimum": 0}, "0.0"),
    ({"type": "number", "exclusiveMaximum": 1}, "2.5"),
    ({"type": "integer", "multipleOf": 5}, "7"),
]
print(f"outlines-core {version('outlines-core')} lets a model write:")
for schema, text in cases:
    expression = build_regex_from_schema(json.dumps(schema))
    allowed = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    print(f"  {text} under {json.dumps(schema)}, which allows it: {allowed}")
    assert re.fullmatch(expression, text) and expression == plain[schema["type"]] and not allowed
lengths = build_regex_from_schema(json.dumps({"type": "string", "minLength": 2, "maxLength": 3}))
assert not re.fullmatch(lengths, '"a"') and re.fullmatch(lengths, '"ab"') and not re.fullmatch(lengths, '"abcd"')
try:
    build_regex_from_schema(json.dumps({"not": {"type": "integer"}}))
except ValueError as error:
    print("and raises for a schema with not:", str(error).splitlines()[0])
else:
    raise SystemExit("a schema with not is taken")
PYTHON
