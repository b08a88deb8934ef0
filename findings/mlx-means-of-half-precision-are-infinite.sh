#!/usr/bin/env bash
# In MLX the mean of 70,000 ones in float16 is infinite.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mlx[cpu]==0.32.4 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""mlx 0.32.4 on CPU: `mean` sums float16 numbers in float16 and then divides, so that it is
infinite as soon as their sum passes 65,504, however small they are: the loss of an untrained model
over 8,192 tokens is enough, for cross_entropy with reduction="mean" too. numpy and PyTorch sum in
float32 and give the mean.
"""

import mlx.core as mx
import mlx.nn as nn
import numpy
import torch


def means(value, count):
    rows = numpy.full(count, value, "float16")
    return mx.mean(mx.array(rows)).item(), float(rows.mean()), torch.from_numpy(rows).mean().item()


print(f"mlx {mx.__version__}, numpy {numpy.__version__}, torch {torch.__version__}, means in float16:")
for value, count in ((1, 65000), (1, 70000), (10, 6000), (10, 8192)):
    found = means(value, count)
    print(f"  {count} times {value}: {found}")
    assert found[1:] == (value, value)
    assert found[0] == float("inf") if value * count > 65504 else abs(found[0] / value - 1) < 0.002
logits, labels = mx.zeros((8192, 4096), mx.float16), mx.zeros(8192, mx.int32)
each = nn.losses.cross_entropy(logits, labels)
mean = nn.losses.cross_entropy(logits, labels, reduction="mean").item()
print(f"  losses of 8192 tokens: {mx.min(each).item():.2f} to {mx.max(each).item():.2f}; their mean: {mean}")
assert 8.3 < mx.min(each).item() <= mx.max(each).item() < 8.4 and mean == float("inf")
PYTHON
