#!/usr/bin/env bash
# MindSpore's AdamWeightDecay moves weights three times as far as its rate at first, and six times in the tenth step.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==1.26.4 mindspore==2.10.0
cd "$folder"
env -u PYTHONPATH GLOG_v=3 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
"""MindSpore 2.10.0: `nn.AdamWeightDecay`, the AdamW of `mindspore.nn`, does not correct its means
for the zeros that they begin with. Under a steady gradient its first step is 3.15 times the rate,
the twelfth, the longest, 6.6 times, and the hundredth still 3.2 times; a hundred steps go as far as
465. `nn.Adam` beside it moves by the rate, as AdamW of PyTorch does. A rate and a warm-up that are
right there are too fast here.
"""

import mindspore
import numpy
from mindspore import Parameter, Tensor, nn

RATE = 1e-3


def steps(kind):
    """How far a weight moves in each of a hundred steps under a steady gradient, as multiples of the rate."""
    weight = Parameter(Tensor(numpy.zeros((2, 2), numpy.float32)), name="weight")
    optimizer, moved = kind([weight], learning_rate=RATE), []
    for _ in range(100):
        before = weight.asnumpy().copy()
        optimizer((Tensor(numpy.full((2, 2), 0.01, numpy.float32)),))
        moved.append(float((before - weight.asnumpy())[0, 0]) / RATE)
    return moved


adam, adamw = steps(nn.Adam), steps(nn.AdamWeightDecay)
print(f"MindSpore {mindspore.__version__}, steps 1, 2, 5, 12 and 100, and the way of all, as multiples of the rate:")
for name, moved in (("Adam", adam), ("AdamWeightDecay", adamw)):
    print(f"  {name}: {', '.join(f'{moved[step - 1]:.2f}' for step in (1, 2, 5, 12, 100))}; {sum(moved):.0f}")
assert all(abs(step - 1) < 1e-3 for step in adam)
assert abs(adamw[0] - 0.1 / 0.001**0.5) < 0.02 and adamw.index(max(adamw)) == 11 and 6.5 < max(adamw) < 6.6
assert adamw[-1] > 3 and sum(adamw) > 450
PYTHON
