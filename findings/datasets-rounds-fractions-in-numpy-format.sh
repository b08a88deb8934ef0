#!/usr/bin/env bash
# datasets rounds float64 columns to float32 in its numpy format, and not where the rows are a stream.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `with_format("numpy")` gives a float64 column as float32, though its features say float64: a time of 1,764,486,000.123 seconds is 16
seconds off, 1e300 is infinite. The same rows as a stream keep 64 bits, as do the formats pandas and arrow. `dtype=numpy.float64` mends it and makes whole
numbers fractions, of which those beyond 2**53 are then rounded. The torch format does as numpy's.
"""

import os
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import datasets  # noqa: E402
import numpy as np  # noqa: E402

rows = datasets.Dataset.from_dict({"time": [1764486000.123, 1e300], "number": [2**53 + 1, 1]})
print(f"datasets {datasets.__version__}, features {rows.features}:")
as_numpy = rows.with_format("numpy")[:]
as_float64 = rows.with_format("numpy", dtype=np.float64)[:]
as_pandas = rows.with_format("pandas")[:]
streamed = next(iter(rows.to_iterable_dataset().with_format("numpy")))
for name, times, number in (
    ("numpy", as_numpy["time"], as_numpy["number"][0]),
    ("numpy, dtype=float64", as_float64["time"], as_float64["number"][0]),
    ("pandas", as_pandas["time"], as_pandas["number"][0]),
    ("numpy, streamed", [streamed["time"]], streamed["number"]),
):
    print(f"  {name}: times {[float(time) for time in times]}, a number {int(number)}")
assert as_numpy["time"].dtype == np.float32 and as_numpy["number"][0] == 2**53 + 1
assert float(as_numpy["time"][0]) == 1764486016 and np.isinf(as_numpy["time"][1])
assert as_float64["time"][0] == as_pandas["time"][0] == streamed["time"] == 1764486000.123
assert int(as_float64["number"][0]) == 2**53 and streamed["number"] == as_pandas["number"][0] == 2**53 + 1
PYTHON
