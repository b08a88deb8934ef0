#!/usr/bin/env bash
# orjson reads a whole number of more than 64 bits as a rounded fraction.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check orjson==3.13.0 msgspec==0.23.0 ujson==6.1.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""orjson 3.13.0: a whole number of 20 or more digits is read as a float, so that its last digits
are others, and two ID's that differ in them are equal. Python's json, msgspec and ujson give the
number as written. orjson itself refuses to write such a whole number, but writes the float that it
made of it: reading a file and writing it again changes it.
"""

import json

import msgspec
import orjson
import ujson

readers = {"json": json.loads, "msgspec": msgspec.json.decode, "ujson": ujson.loads, "orjson": orjson.loads}
print(f"orjson {orjson.__version__} and others, what they read:")
for text in ("18446744073709551615", "18446744073709551616", "12345678901234567890123", "-9223372036854775809"):
    found = {name: read(text) for name, read in readers.items()}
    print(f"  {text}: {found}")
    assert found["json"] == found["msgspec"] == found["ujson"] == int(text)
    assert isinstance(found["orjson"], int) == (text == "18446744073709551615")
again = orjson.dumps(orjson.loads('{"id": 12345678901234567890123}')).decode()
print(f"  12345678901234567890123 read and written: {again}")
assert again == '{"id":1.2345678901234568e+22}'
assert orjson.loads("12345678901234567890123") == orjson.loads("12345678901234567890124")
try:
    orjson.dumps(2**64)
    raise SystemExit("a number of 65 bits was written")
except orjson.JSONEncodeError as error:
    print(f"  2**64 written: {error}")
PYTHON
