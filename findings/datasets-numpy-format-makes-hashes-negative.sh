#!/usr/bin/env bash
# Hashes of 64 bits come out of datasets' numpy format as negative numbers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `with_format("numpy")` and "torch" give every column of whole numbers as int64. A uint64 beyond 2**63, as half of all hashes by which rows are
made unique or dealt out are, comes out less by 2**64; its remainder by ten, say, is another one. Without a format, and with pandas and arrow, it is right. Smaller unsigned
types are right too.
"""

import os
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import datasets  # noqa: E402
import pyarrow as pa  # noqa: E402

hashes = [2**63 + 5, 5]
rows = datasets.Dataset(pa.table({"hash": pa.array(hashes, pa.uint64()), "small": pa.array([2**32 - 1, 5], pa.uint32())}))
print(f"datasets {datasets.__version__}, features {rows.features}, hashes {hashes}:")
found = {name: [int(value) for value in rows.with_format(name)[:]["hash"]] for name in (None, "pandas", "numpy")}
for name, values in found.items():
    print(f"  format {name}: {values}, by ten {[value % 10 for value in values]}")
assert found[None] == found["pandas"] == hashes
assert found["numpy"] == [5 - 2**63, 5] and found["numpy"][0] % 10 != hashes[0] % 10
assert [int(value) for value in rows.with_format("numpy")[:]["small"]] == [2**32 - 1, 5]
PYTHON
