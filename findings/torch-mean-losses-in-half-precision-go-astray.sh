#!/usr/bin/env bash
# On CPU the mean loss of 100,000 float16 rows is NaN, and of bfloat16 rows 1.4% too low.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, on CPU: `cross_entropy` and `nll_loss` add the losses of rows, and count the rows, in the type of the logits. In float16 both are
infinite beyond 65,504, and their quotient is NaN although every row's loss is 2.3; in bfloat16 the sum of a hundred rows is 1.4% low
already, where its numbers are 0.4% apart. `reduction="none"` and a mean of that is right, as is float32. Nothing is said.
"""

import math

import torch
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)
exact = math.log(10)
print(f"torch {torch.__version__}, mean loss of rows whose loss is {exact:.4f} each; mean of the rows' losses:")
for kind in (torch.float32, torch.bfloat16, torch.float16):
    for rows in (1, 100, 10_000, 100_000):
        logits, labels = torch.zeros(rows, 10, dtype=kind), torch.zeros(rows, dtype=torch.long)
        mean = cross_entropy(logits, labels).item()
        by_row = cross_entropy(logits, labels, reduction="none").mean().item()
        print(f"  {kind}, {rows:,} rows: {mean:.4f}; {by_row:.4f}")
        assert abs(by_row - exact) < 0.004 * exact
        if kind == torch.float16 and rows == 100_000:
            assert math.isnan(mean)
        elif kind == torch.bfloat16 and rows > 1:
            assert 0.008 * exact < exact - mean < 0.03 * exact
        else:
            assert abs(mean - exact) < 0.004 * exact
PYTHON
