#!/usr/bin/env bash
# tinygrad's cross entropy counts ignored labels in its mean, and with label smoothing trains them.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tinygrad==0.14.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH DEV=PYTHON "$folder/venv/bin/python" - <<'PYTHON'
"""tinygrad 0.14.0: ignore_index=-1, its default, ignores nothing. A label of -1, and any other beyond the vocabulary as -100, has no token and so a
loss of 0, but the mean divides by all labels: of rows that are two thirds padding the loss is a third, and so are the gradients, more
with each shorter row. With label smoothing such a place has a gradient of its own, towards all tokens alike. With ignore_index=-100, labels of -100 are left
out as PyTorch leaves them out; -1 cannot be left out. tinygrad's cross_entropy has no ignore_index at all.
"""

from importlib.metadata import version

import numpy as np
from tinygrad import Tensor

logits = np.zeros((3, 8), np.float32)
logits[:, 2] = 3
whole = float(np.log(7 + np.exp(3)))


def loss_of(labels, smoothing=0.0, **settings):
    given = Tensor(logits)
    loss = given.sparse_categorical_crossentropy(Tensor(labels), label_smoothing=smoothing, **settings)
    return loss.item(), np.abs(loss.gradient(given)[0].numpy()[1:]).max()


print(f"tinygrad {version('tinygrad')}, one label and two to ignore; the label's own loss is {whole:.3f}:")
for ignored, settings, right in ((-1, {}, False), (-1, {"ignore_index": -1}, False), (-100, {}, False), (-100, {"ignore_index": -100}, True)):
    labels = [5, ignored, ignored]
    (loss, gradient), (_, smoothed) = loss_of(labels, **settings), loss_of(labels, 0.1, **settings)
    plain = Tensor(logits).cross_entropy(Tensor(labels)).item()
    print(f"  {labels}, {settings}: loss {loss:.3f}; largest gradient at ignored places {gradient:.3f}, smoothed {smoothed:.3f}; cross_entropy {plain:.3f}")
    assert abs(loss - (whole if right else whole / 3)) < 1e-4 and abs(plain - whole / 3) < 1e-4
    assert gradient == 0 and (smoothed == 0) == right
PYTHON
