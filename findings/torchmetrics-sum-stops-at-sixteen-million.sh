#!/usr/bin/env bash
# torchmetrics' SumMetric, which counts tokens, stops at 16,777,216.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchmetrics 1.9.0: `SumMetric` adds in float32, whatever it is given. A count of tokens that comes in row by row goes astray beyond
16,777,216: rows of one token add nothing, and rows of three add four. So it does for int64 tensors and for Python's whole numbers, and
nothing is said. `metric.set_dtype(torch.float64)` before the first update counts right.
"""

import torch
import torchmetrics
from torchmetrics import SumMetric

begun = 2**24


def counted(row, as_tensor, wide=False):
    metric = SumMetric()
    if wide:
        metric.set_dtype(torch.float64)
    for count in (begun, *[row] * 1000):
        metric.update(torch.tensor(count) if as_tensor else count)
    return int(metric.compute())


print(f"torchmetrics {torchmetrics.__version__}, torch {torch.__version__}, what 1,000 rows add to {begun:,}:")
for row in (1, 2, 3):
    found = [counted(row, as_tensor) - begun for as_tensor in (True, False)]
    wide = counted(row, True, wide=True) - begun
    print(f"  rows of {row}: tensors {found[0]:,}, whole numbers {found[1]:,}; in float64 {wide:,}")
    assert wide == 1000 * row and found == [{1: 0, 2: 2000, 3: 4000}[row]] * 2
PYTHON
