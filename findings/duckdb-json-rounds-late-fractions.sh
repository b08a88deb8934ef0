#!/usr/bin/env bash
# DuckDB rounds fractions to whole numbers where the first rows of a JSON Lines file have none.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==2.0.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""duckdb 2.0.1: `read_json` takes the types of columns from the first 20,480 rows. Where they hold
whole numbers, fractions of later rows are rounded, and where they hold true and false a 3 there
is true; text there is refused. Nothing is said: rewards that are 0 or 1 at first lose all that is
between. `sample_size=-1` reads the whole file for its types.
"""

import json

import duckdb


def last(first, later, rows, **settings):
    """The last value of a file of some rows of one value and one row of another."""
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps({"value": value}) + "\n" for value in [first] * rows + [later])
    return duckdb.read_json("rows.jsonl", **settings).fetchall()[-1][0]


print(f"duckdb {duckdb.__version__}, the last value of a file:")
for first, later, expected in ((1, 0.4, 0), (1, 1.5, 2), (False, 3, True)):
    early, late = last(first, later, 20_000), last(first, later, 50_000)
    whole = last(first, later, 50_000, sample_size=-1)
    print(f"  {later} behind rows of {first}: 20,000 {early!r}, 50,000 {late!r}, sample_size=-1 {whole!r}")
    assert late == expected and type(late) is type(expected)
    assert float(json.loads(str(early))) == float(json.loads(str(whole))) == later
try:
    last(1, "none", 50_000)
    raise SystemExit("text was taken")
except duckdb.InvalidInputException:
    print("  text behind 50,000 rows of 1: refused")
PYTHON
