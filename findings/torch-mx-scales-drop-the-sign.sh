#!/usr/bin/env bash
# As a scale of the MX formats PyTorch makes 4 of -4, and of 0 a number, where ml_dtypes gives NaN.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 ml_dtypes==0.6.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: float8_e8m0fnu, in which MXFP8 and MXFP4 keep the scales of their blocks, has powers of two alone: no sign and no zero. The cast
drops the sign and takes 0 for 2**-127, so that a wrong scale looks like a right one; `torch.zeros` of the type is full of 2**-127, and
true as a condition. ml_dtypes, of JAX and ONNX, gives NaN for both. Between powers of two both round alike.
"""

import warnings
from importlib.metadata import version

import ml_dtypes
import numpy as np
import torch

warnings.simplefilter("ignore")
numbers = [4.0, 3.0, 5.0, 0.0, -4.0, -1.0, float("inf")]
cast = torch.tensor(numbers).to(torch.float8_e8m0fnu).float().tolist()
other = np.array(numbers, np.float32).astype(ml_dtypes.float8_e8m0fnu).astype(np.float32).tolist()
print(f"torch {torch.__version__}, ml_dtypes {version('ml_dtypes')}, as float8_e8m0fnu:")
for number, mine, its in zip(numbers, cast, other, strict=True):
    print(f"  {number}: torch {mine}, ml_dtypes {its}")
zeros = torch.zeros(2, dtype=torch.float8_e8m0fnu)
print(f"  torch.zeros: {zeros.float().tolist()}, as conditions {zeros.bool().tolist()}")
assert cast[:3] == other[:3] == [4, 4, 4]
assert cast[3:6] == [2.0**-127, 4, 1] and np.isnan(other[3:6]).all()
assert np.isnan(cast[6]) and np.isnan(other[6])
assert zeros.float().tolist() == [2.0**-127] * 2 and zeros.bool().all()
PYTHON
