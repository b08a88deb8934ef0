#!/usr/bin/env bash
# Keras divides the loss of masked tokens by all tokens, and shows another number as the metric of the same name.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check keras==3.15.1 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH KERAS_BACKEND=torch "$folder/venv/bin/python" - <<'PYTHON'
"""keras 3.15.1: where sample weights leave tokens out (keras-hub's preprocessors give them for padding, users for prompts), the loss of a batch is the sum over the
kept tokens divided by all of them. A batch with a quarter of its tokens kept trains by a quarter of the gradient that PyTorch's `ignore_index` gives, and rows with more
padding report lower losses. The metric of the same loss divides by the weights, so that both differ in one log. `reduction="mean_with_sample_weight"` or `ignore_class`
make the loss a mean over kept tokens.
"""

import math

import keras
import torch

kept, count, vocabulary = 2, 8, 16
labels = torch.arange(count)[None]
logits = torch.zeros(1, count, vocabulary, requires_grad=True)
weights = torch.tensor([[1.0] * kept + [0.0] * (count - kept)])
masked = torch.where(weights > 0, labels, -100)


def both(loss):
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.item(), gradient.norm().item()


loss_class = keras.losses.SparseCategoricalCrossentropy
metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
metric.update_state(labels, logits.detach(), sample_weight=weights)
wanted = both(torch.nn.functional.cross_entropy(logits[0], masked[0]))
found = {
    "sample_weight": both(loss_class(from_logits=True)(labels, logits, sample_weight=weights)),
    "mean_with_sample_weight": both(loss_class(from_logits=True, reduction="mean_with_sample_weight")(labels, logits, sample_weight=weights)),
    "ignore_class": both(loss_class(from_logits=True, ignore_class=-100)(masked, logits)),
}
print(f"keras {keras.__version__}, {kept} of {count} tokens kept: loss and norm of its gradient")
print(f"  PyTorch, ignore_index: {wanted[0]:.4f}, {wanted[1]:.4f}; the metric of Keras: {metric.result().item():.4f}")
for name, (loss, norm) in found.items():
    print(f"  Keras, {name}: {loss:.4f}, {norm:.4f}")
    share = kept / count if name == "sample_weight" else 1
    assert math.isclose(loss, share * wanted[0], rel_tol=1e-4) and math.isclose(norm, share * wanted[1], rel_tol=1e-4)
assert math.isclose(metric.result().item(), wanted[0], rel_tol=1e-4)
PYTHON
