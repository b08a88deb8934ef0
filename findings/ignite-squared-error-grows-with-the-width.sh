#!/usr/bin/env bash
# ignite's mean squared error of 1,000 columns is 1,000 times that of one: it divides by rows alone.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pytorch-ignite==0.5.5 torchmetrics==1.9.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""pytorch-ignite 0.5.5: `MeanSquaredError`, `MeanAbsoluteError` and `RootMeanSquaredError` sum over
all that a row holds and divide by the number of rows. Of tensors of one column they are PyTorch's
loss; of wider ones, as embeddings or the hidden states of a distillation, they are larger by the
width, and the root by its root. torchmetrics divides by all numbers.
"""

import ignite
import ignite.metrics
import torch
import torchmetrics
from torch.nn import functional


def ignites(kind, found, wanted):
    metric = kind()
    metric.update((found, wanted))
    return round(float(metric.compute()), 4)


versions = f"ignite {ignite.__version__}, torch {torch.__version__}, torchmetrics {torchmetrics.__version__}"
print(f"{versions}, all errors are 0.5:")
for shape in ((4, 1), (4, 100), (4, 10, 100)):
    found, wanted = torch.full(shape, 0.5), torch.zeros(shape)
    kinds = (ignite.metrics.MeanSquaredError, ignite.metrics.MeanAbsoluteError, ignite.metrics.RootMeanSquaredError)
    squared, absolute, root = (ignites(kind, found, wanted) for kind in kinds)
    loss = functional.mse_loss(found, wanted).item()
    other = torchmetrics.MeanSquaredError()(found.flatten(), wanted.flatten()).item()
    print(f"  {shape}: ignite {squared}, {absolute} absolute, {root} root; torch {loss}; torchmetrics {other}")
    width = found[0].numel()
    assert squared == 0.25 * width and absolute == 0.5 * width and abs(root - 0.5 * width**0.5) < 1e-3
    assert loss == other == 0.25
PYTHON
