#!/usr/bin/env bash
# polars adds up lengths in 32 bits: the characters of a corpus beyond 4.3 billion start again at 0.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""polars 2.1.0 gives the lengths of texts (`len_chars`, `len_bytes`), of lists and of tables as 32-bit numbers, and
their sum, running sum and product stay 32 bits wide: it widens 8 and 16 bits, and not these. A count of characters or
tokens over a corpus wraps at 4,294,967,296, in a group and in SQL too, and nothing is said. pyarrow gives 64
bits. Cast to Int64 first. Lengths are written out here in place of texts of gigabytes.
"""

import polars
import pyarrow
import pyarrow.compute

texts = polars.DataFrame({"text": ["ab", "c"], "ids": [[1, 2], [3]]})
lengths = texts.select(polars.col("text").str.len_chars(), polars.col("ids").list.len()).schema
assert set(lengths.values()) == {polars.UInt32}
each = [1_500_000_000] * 3
whole = sum(each)
rows = polars.DataFrame({"length": polars.Series(each, dtype=lengths["text"]), "source": ["web"] * 3})
found = {
    "sum": rows["length"].sum(),
    "sum of a group": rows.group_by("source").agg(polars.col("length").sum())["length"][0],
    "last of a running sum": rows["length"].cum_sum()[-1],
    "sum in SQL": polars.SQLContext(rows=rows).execute("SELECT sum(length) AS whole FROM rows").collect().item(),
}
print(f"polars {polars.__version__}, three lengths of 1,500,000,000, which are {whole:,}:")
for name, number in found.items():
    print(f"  {name}: {number:,}")
    assert number == whole - 2**32
wide = rows["length"].cast(polars.Int64).sum()
short = polars.Series([60_000] * 3, dtype=polars.UInt16).sum()
print(f"  cast to Int64: {wide:,}; three of 60,000 in 16 bits: {short:,}")
assert wide == whole and short == 180_000
other = pyarrow.compute.sum(pyarrow.array(each, pyarrow.uint32())).as_py()
print(f"  pyarrow: {other:,}")
assert other == whole
PYTHON
