#!/usr/bin/env bash
# datasets rounds whole numbers to 24 bits where another row of the batch has none.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: in the formats "torch" and "numpy" a batch of a column of whole numbers is
float32 where one of its rows has no value: 16,777,217 becomes 16,777,216, and the times and ID's of
such a column are off by up to hundreds. The same row by itself, or in a batch without a gap, is a
whole number as stored, so values and types depend on the batch. float32 is the format's default for
fractions; pandas, which makes such a column float64, keeps 53 bits.
"""

import datasets

rows = datasets.Dataset.from_dict({"id": [16777217, 1700000001, None]})
print(f"datasets {datasets.__version__}, ids {rows['id'][:]}:")
for name in ("torch", "numpy"):
    given = rows.with_format(name)
    alone, whole, gap = given[1]["id"], given[:2]["id"], given[:]["id"]
    print(f"  {name}: {alone} alone, {whole.tolist()} of two rows, {gap.tolist()} of three")
    assert int(alone) == 1700000001 and whole.tolist() == [16777217, 1700000001]
    assert gap.tolist()[:2] == [16777216.0, 1700000000.0] and str(gap.dtype).endswith("float32")
assert rows.with_format("pandas")[:]["id"].tolist()[:2] == [16777217.0, 1700000001.0]
PYTHON
