#!/usr/bin/env bash
# PyTorch's weighted cross entropy is another number for the same labels written one-hot.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `cross_entropy` with weights of classes divides by the sum of the rows' weights
where targets are numbers, and by the number of rows where they are probabilities. The same labels
one-hot give another loss, and gradients that are longer by the same factor: rows of a rare class
of weight 10 move the model ten times as much. Without weights the two agree.
"""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
logits = torch.randn(8, 3)
weights = torch.tensor([0.1, 1.0, 10.0])


def losses(labels, weight):
    found = []
    for targets in (labels, F.one_hot(labels, 3).float()):
        made = logits.clone().requires_grad_()
        loss = F.cross_entropy(made, targets, weight=weight)
        loss.backward()
        found.append((loss.item(), made.grad.norm().item()))
    return found


print(f"torch {torch.__version__}, loss and length of its gradient, labels as numbers and one-hot:")
cases = {
    "no weights": (torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), None),
    "eight rows of the class of weight 0.1": (torch.zeros(8, dtype=torch.long), weights),
    "eight rows of the class of weight 10": (torch.full((8,), 2), weights),
}
for name, (labels, weight) in cases.items():
    numbers, one_hot = losses(labels, weight)
    print(f"  {name}: {numbers[0]:.4f}, {numbers[1]:.4f}; {one_hot[0]:.4f}, {one_hot[1]:.4f}")
    factor = 1.0 if weight is None else weight[labels].mean().item()
    assert all(abs(other / one / factor - 1) < 1e-4 for one, other in zip(numbers, one_hot))
PYTHON
