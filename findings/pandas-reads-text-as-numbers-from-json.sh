#!/usr/bin/env bash
# pandas reads the JSON text "007" as the number 7, and "1_000" as 1000.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pandas==3.1.1 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pandas 3.1.1: `read_json` turns a column of JSON text into numbers where all of it converts:
codes lose their zeros, the answer "nan" is no value, "1_000" is 1000 and "1e3" is 1000.0, and an ID
of 20 digits is rounded to a float. One row that is no number leaves the column text, so that types
depend on the rows of a file. `dtype=False` leaves text alone.
"""

import io
import json

import pandas


def read(*values, **settings):
    lines = "\n".join(json.dumps({"answer": value}) for value in values)
    return pandas.read_json(io.StringIO(lines), lines=True, **settings)["answer"].tolist()


print(f"pandas {pandas.__version__}, text in JSON Lines, as read:")
expected = {
    ("007", "12"): [7, 12],
    ("007", "12", "x"): ["007", "12", "x"],
    ("1_000", "7"): [1000, 7],
    ("1e3", "7"): [1000.0, 7.0],
    ("12345678901234567891", "12345678901234567892"): [1.2345678901234567e19, 1.2345678901234567e19],
}
for values, wanted in expected.items():
    print(f"  {list(values)}: {read(*values)}; dtype=False: {read(*values, dtype=False)}")
    assert read(*values) == wanted and [type(one) for one in read(*values)] == [type(one) for one in wanted]
    assert read(*values, dtype=False) == list(values)
PYTHON
