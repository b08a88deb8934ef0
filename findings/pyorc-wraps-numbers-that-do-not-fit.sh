#!/usr/bin/env bash
# pyorc writes 300 into a tinyint as 44, and 70,000 into a smallint, which other readers see as 4,464.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyorc==0.12.0 pyarrow==26.0.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pyorc 0.12.0: a whole number that does not fit the type of its column is written, and nothing is
said. In a tinyint 300 is 44. In a smallint or int the file holds more bits than the type has: pyorc
reads the number that was written, and pyarrow, which takes the type at its word, reads the token
70,000 as 4,464. pyarrow refuses to make any of these.
"""

import io
from importlib.metadata import version

import pyarrow
import pyarrow.orc
import pyorc


def written(kind, number):
    file = io.BytesIO()
    with pyorc.Writer(file, f"struct<n:{kind}>") as writer:
        writer.write((number,))
    file.seek(0)
    again = pyarrow.orc.read_table(file)["n"].to_pylist()
    file.seek(0)
    return next(iter(pyorc.Reader(file)))[0], again[0]


print(f"pyorc {version('pyorc')}, as pyorc reads it, as pyarrow {pyarrow.__version__} does:")
cases = (
    ("tinyint", "int8", 300, (44, 44)),
    ("smallint", "int16", 70000, (70000, 4464)),
    ("int", "int32", 2**31, (2**31, -(2**31))),
    ("bigint", "int64", 2**31, (2**31, 2**31)),
)
for kind, arrow, number, wanted in cases:
    print(f"  {number} as {kind}: {written(kind, number)}")
    assert written(kind, number) == wanted
    try:
        pyarrow.array([number], arrow)
        assert kind == "bigint"
    except pyarrow.ArrowInvalid:
        assert kind != "bigint"
PYTHON
