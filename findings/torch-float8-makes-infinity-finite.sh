#!/usr/bin/env bash
# PyTorch casts infinity to 448 in float8_e4m3fn, where ml_dtypes, of JAX and ONNX, gives NaN.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 ml_dtypes==0.6.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: what is too large for float8_e4m3fn, a format without infinity, becomes its largest number, 448, and so does infinity:
an overflow that was seen before the cast is a plain number behind it. NaN stays. ml_dtypes 0.6.0 gives NaN for both. float8_e5m2 of
PyTorch, which has an infinity, saturates nothing: 1e6 is infinity in it. Within the range both libraries round alike.
"""

from importlib.metadata import version

import ml_dtypes
import numpy as np
import torch


def casts(value, name):
    """A float32 through a float8 of PyTorch and of ml_dtypes."""
    with np.errstate(all="ignore"):
        other = np.float32(value).astype(getattr(ml_dtypes, name)).astype(np.float32).item()
    return torch.tensor(value, dtype=torch.float32).to(getattr(torch, name)).float().item(), other


print(f"torch {version('torch')} and ml_dtypes {version('ml_dtypes')}:")
for name in ("float8_e4m3fn", "float8_e5m2"):
    for value in (440.0, 1e6, float("inf"), float("nan")):
        print(f"  {value} in {name}:", *casts(value, name))
for value in (466.0, 1e6, float("inf")):
    ours, theirs = casts(value, "float8_e4m3fn")
    assert ours == 448 and np.isnan(theirs)
    assert casts(-value, "float8_e4m3fn")[0] == -448
assert np.isnan(casts(float("nan"), "float8_e4m3fn")).all()
assert casts(1e6, "float8_e5m2") == (float("inf"), float("inf")) == casts(float("inf"), "float8_e5m2")
grid = np.linspace(-448, 448, 20_001, dtype=np.float32)
ours = torch.from_numpy(grid).to(torch.float8_e4m3fn).float().numpy()
assert (ours == grid.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()
PYTHON
