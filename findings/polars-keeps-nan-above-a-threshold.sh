#!/usr/bin/env bash
# Where rows with a score above 0.5 are kept, polars, DuckDB and Lance keep those whose score is NaN too.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 duckdb==2.0.1 pylance==14.0.2 \
  pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""polars 2.1.0, duckdb 2.0.1 and pylance 14.0.2: NaN is greater than all numbers and equal to itself.
So a row that a scorer gave NaN, as for an empty text, passes every filter for good ones, `score > 0.5`,
and none for bad ones, and is the first of the best in polars. pandas and pyarrow, and Python itself,
drop it in both. A missing score is dropped by all of them. Nothing is said.
"""

from importlib.metadata import version

import duckdb
import lance
import pandas
import polars
import pyarrow
import pyarrow.parquet

table = pyarrow.table({"row": [0, 1, 2, 3], "score": [0.9, 0.1, float("nan"), None]})
pyarrow.parquet.write_table(table, "rows.parquet")
rows = lance.write_dataset(table, "rows.lance")
frame, data = polars.read_parquet("rows.parquet"), pandas.read_parquet("rows.parquet")
kept = {}
for asked in ("score > 0.5", "score < 0.5"):
    kept[asked] = {
        "polars": frame.filter(polars.sql_expr(asked))["row"].to_list(),
        "duckdb": [row for (row,) in duckdb.sql(f"select row from 'rows.parquet' where {asked}").fetchall()],
        "pylance": rows.to_table(filter=asked)["row"].to_pylist(),
        "pyarrow": pyarrow.parquet.read_table("rows.parquet", filters=[("score", asked[6], 0.5)])["row"].to_pylist(),
        "pandas": data.query(asked)["row"].tolist(),
    }
print("of scores of 0.9, 0.1, NaN and none, rows above 0.5 and below:")
for name, above in kept["score > 0.5"].items():
    below = kept["score < 0.5"][name]
    print(f"  {name} {version(name)}: {above} {below}")
    assert above == ([0] if name in ("pyarrow", "pandas") else [0, 2]) and below == [1]
best = frame.top_k(1, by="score")["row"].to_list(), data.nlargest(1, "score")["row"].tolist()
print(f"  the best by polars and by pandas: {best}")
assert best == ([2], [0]) and frame.filter(polars.col("score") > 0.5)["row"].to_list() == [0, 2]
PYTHON
