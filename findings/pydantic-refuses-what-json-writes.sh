#!/usr/bin/env bash
# pydantic's JSON reader refuses text that Python's JSON writer has written.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pydantic==2.14.3
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pydantic 2.14.3: a file name of Linux that is no UTF-8 is text with a lone surrogate in Python (os.fsdecode).
`json.dumps` writes it as an escape and `json.loads` reads it; `validate_json` says that it is invalid JSON, while
`validate_python` takes the same text. One such name makes a whole file of facts unreadable.
"""

import json
import os

import pydantic

name = os.fsdecode(b"caf\xe9.jsonl")
written = json.dumps({"path": name})
reader = pydantic.TypeAdapter(dict[str, str])
assert json.loads(written) == reader.validate_python({"path": name}) == {"path": name}
try:
    reader.validate_json(written)
    raise SystemExit("validate_json reads it: the behaviour has changed")
except pydantic.ValidationError as error:
    print(f"pydantic {pydantic.VERSION}, of {written}: {error.errors()[0]['msg']}")
    assert error.errors()[0]["type"] == "json_invalid"
PYTHON
