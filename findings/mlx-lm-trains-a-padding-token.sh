#!/usr/bin/env bash
# mlx-lm trains the first padding token behind every row, and counts it in its losses.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 mlx-lm==0.32.2 mlx==0.32.4 mlx-cpu==0.32.4
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""mlx-lm 0.32.2 pads rows with token 0, always by one at least, and its mask ends a token late: behind the last token of a row,
which is the end of the text, the model is trained to write token 0. That target is in the mean of the loss, in evaluation too:
of a row whose answer is one token, half of what is learnt is the padding. A row cut at the longest length has none.
"""

from importlib.metadata import version

import mlx.core as mx
import numpy as np
from mlx_lm.tuner.trainer import default_loss, iterate_batches

WORDS, END = 8, 7
logits = mx.array(np.random.default_rng(0).normal(size=(WORDS, WORDS)).astype(np.float32))


def model(ids):
    """Logits that hang on the token before alone."""
    return logits[ids]


def mean(pairs):
    """The mean loss of predicting a token from the one before it."""
    table = np.array(logits, np.float64)
    return np.mean([np.log(np.exp(table[before]).sum()) - table[before, after] for before, after in pairs])


print(f"mlx-lm {version('mlx-lm')}: loss and number of targets, of rows and of rows with a padding token behind each:")
for rows in ([([3, 5, END], 0), ([2, 4, 6, 1, END], 0)], [([3, 5, END], 2), ([2, 4, 6, 1, END], 4)]):
    batch, lengths = next(iterate_batches(rows, 2, max_seq_length=64))
    loss, count = default_loss(model, batch, lengths)
    own = [(ids[at - 1], ids[at]) for ids, start in rows for at in range(max(start, 1), len(ids))]
    padded = own + [(END, 0)] * len(rows)
    print(f"  {loss.item():.4f}, {count.item()}; {mean(own):.4f}, {len(own)}; {mean(padded):.4f}, {len(padded)}")
    assert count.item() == len(padded) and abs(loss.item() - mean(padded)) < 1e-4 < abs(loss.item() - mean(own))
PYTHON
