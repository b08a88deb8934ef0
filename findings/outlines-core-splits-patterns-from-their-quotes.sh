#!/usr/bin/env bash
# A pattern with alternatives gives texts in outlines-core that lack one of their quotes.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check outlines-core==0.2.14 jsonschema==4.26.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""outlines-core 0.2.14 writes the quotes of a JSON text around its pattern without a group: ("yes|no") is `"yes` or `no"`. A model held
to the schema writes {"a":"yes} and nothing else, which is no JSON; the answers that the schema allows are refused. In the form
^(yes|no)$ the same pattern comes out right, as does "enum".
"""

import json
import re
from importlib.metadata import version

import jsonschema
from outlines_core.json_schema import build_regex_from_schema

valid, broken = '{"a":"yes"}', '{"a":"yes}'
print(f"outlines-core {version('outlines-core')} lets a model write:")
for pattern, right in (("^yes|no$", False), ("yes|no", False), ("^(yes|no)$", True)):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    jsonschema.validate(json.loads(valid), schema)
    expression = build_regex_from_schema(json.dumps(schema))
    taken = {text: bool(re.fullmatch(expression, text)) for text in (valid, broken)}
    print(f"  {pattern}: {taken}")
    assert taken == {valid: right, broken: not right}
try:
    json.loads(broken)
except json.JSONDecodeError as error:
    print(f"{broken} as JSON: {error}")
else:
    raise SystemExit("a text without its second quote is JSON")
PYTHON
