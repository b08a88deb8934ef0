#!/usr/bin/env bash
# One NaN among bfloat16 numbers, and numpy leaves them unsorted.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""numpy 2.4.6 sorts NaN behind all numbers. Of the types of ml_dtypes 0.6.0 (bfloat16, float8) it compares as `<` does, to
which no number is below NaN or above it: numbers stay on the wrong side of it, by every `kind` of sorting, and so in
`unique`, `argsort` and `quantile`, which is then a number with no sign of the NaN. Nothing is said. Sort `x.astype(np.float32)`.
"""

import ml_dtypes
import numpy as np

values = [3, 9, 8, np.nan, 2, 1, 7]
print(f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, {values} sorted, and in order by argsort:")
for name, kind in {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float8": ml_dtypes.float8_e4m3fn}.items():
    numbers = np.array(values, kind)
    found = [np.sort(numbers, kind=way).astype(np.float32) for way in ("quicksort", "stable", "heapsort")]
    found.append(numbers[np.argsort(numbers)].astype(np.float32))
    print(f"  {name}: {found[0].tolist()}, {found[-1].tolist()}")
    for order in found:
        numbers_alone = order[~np.isnan(order)]
        right = np.isnan(order[-1]) and bool((np.diff(numbers_alone) > 0).all())
        assert right == (name in ("float32", "float16"))
PYTHON
