#!/usr/bin/env bash
# Labels of -100 are the hundredth token from the end to the cross entropies of optax and MLX.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check jax==0.10.2 optax==0.2.8 mlx==0.32.4 mlx-cpu==0.32.4 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""optax 0.2.8 and mlx 0.32.4: the collators and data sets of transformers and TRL mark tokens that are not to be trained as -100, which
PyTorch leaves out. optax.softmax_cross_entropy_with_integer_labels and mlx.nn.losses.cross_entropy take it as a place counted from the
end of the vocabulary: the prompt and the padding of every row train the token 100 before the last. The loss is finite and falls,
and nothing is said.
"""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import optax
import torch

size = 32000
logits = np.zeros((3, size), np.float32)
logits[0, 5] = 3
logits[1:, size - 100] = 3
labels = np.array([5, -100, -100])
left = np.array([5, size - 100, size - 100])
pytorch = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels), reduction="none").numpy()
found = {
    "optax": lambda given: np.asarray(optax.softmax_cross_entropy_with_integer_labels(logits, given)),
    "mlx": lambda given: np.array(nn.losses.cross_entropy(mx.array(logits), mx.array(given))),
}
print(f"labels {labels.tolist()} of {size:,} tokens: torch {[round(float(one), 3) for one in pytorch]}")
assert (pytorch[1:] == 0).all() and pytorch[0] > 1
for name, loss in found.items():
    given = loss(labels)
    print(f"  {name}: {[round(float(one), 3) for one in given]}, as of the labels {left.tolist()}")
    assert np.array_equal(given, loss(left)) and (given[1:] > 1).all()
PYTHON
