#!/usr/bin/env bash
# PyTorch's multinomial draws entries of probability zero where too few others are left.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `torch.multinomial` without replacement, asked for more draws than there are
probabilities above zero, draws entries whose probability is zero: on the CPU always the same
ones. `WeightedRandomSampler(replacement=False)`, which draws with it, so yields rows of weight
zero that its user took out of training. `numpy.random.Generator.choice` refuses the same.
"""

from collections import Counter

import numpy
import torch
from torch.utils.data import WeightedRandomSampler

weights = [0.5, 0.5, 0.0, 0.0]
torch.manual_seed(0)
drawn = Counter(number for _ in range(1000) for number in torch.multinomial(torch.tensor(weights), 3).tolist())
sampled = Counter(number for _ in range(1000) for number in WeightedRandomSampler(weights, 3, replacement=False))
enough = Counter(number for _ in range(1000) for number in torch.multinomial(torch.tensor(weights), 2).tolist())
print(f"torch {torch.__version__}, draws of each entry of {weights} in 1000 calls without replacement:")
for name, counts in (("multinomial, 2", enough), ("multinomial, 3", drawn), ("WeightedRandomSampler, 3", sampled)):
    print(f"  {name} a call: {[counts[number] for number in range(4)]}")
try:
    numpy.random.default_rng(0).choice(4, 3, replace=False, p=weights)
    refused = None
except ValueError as error:
    refused = str(error)
print(f"  numpy {numpy.__version__}, 3 a call: {refused}")
assert enough[2] + enough[3] == 0 and refused
assert drawn[2] + drawn[3] == 1000 and sampled[2] + sampled[3] == 1000
PYTHON
