#!/usr/bin/env bash
# polars cuts fractions off where the first hundred rows of a column are whole numbers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""polars 2.1.0: `from_dicts` and `DataFrame` of rows take types and columns from the first 100. A
fraction in a later row is cut off, not refused: a metric that is 0 for 100 steps is 0 for all.
Columns, and fields of structs, that only later rows have are dropped. Text there is refused, and
so is a fraction by `read_ndjson`. `infer_schema_length=None` looks at all rows.
"""

import polars


def last(first, later, rows=100, **settings):
    """The last row of a table of some rows and one other."""
    return polars.from_dicts([first] * rows + [later], **settings).row(-1, named=True)


print(f"polars {polars.__version__}, the last row of from_dicts:")
cases = (
    ({"reward": 0}, {"reward": 0.75}, {"reward": 0}),
    ({"reward": 0}, {"reward": -1.5}, {"reward": -1}),
    ({"id": 1}, {"id": 1, "tools": "search"}, {"id": 1}),
    ({"call": {"name": "a"}}, {"call": {"name": "a", "id": 7}}, {"call": {"name": "a"}}),
)
for first, later, expected in cases:
    early, late, all_rows = last(first, later, 99), last(first, later), last(first, later, infer_schema_length=None)
    print(f"  {later} as row 100: {early}; as row 101: {late}; infer_schema_length=None: {all_rows}")
    assert early == all_rows == later and late == expected
    assert polars.DataFrame([first] * 100 + [later]).row(-1, named=True) == expected
try:
    last({"reward": 0}, {"reward": "none"})
    raise SystemExit("text was taken")
except polars.exceptions.ComputeError:
    print("  text behind 100 whole numbers: refused")
PYTHON
