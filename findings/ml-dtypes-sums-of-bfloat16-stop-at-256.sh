#!/usr/bin/env bash
# The sum of 70,000 ones in bfloat16 is 256 in numpy, and their mean 0.004.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""ml_dtypes 0.6.0 gives numpy 2.4.6 the type bfloat16, which JAX, Flax and most readers of checkpoints use. numpy takes
sums of float32 in pairs and the mean of float16 in float32. Of bfloat16 it adds number by number in bfloat16: at 256
adding 1 changes nothing, and of float8 at 16 or 8. So means and standard deviations of weights are wrong by factors and
nothing is said. `dtype=np.float32` gives the right ones; products (`@`) are right without it.
"""

import ml_dtypes
import numpy as np

kinds = {
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
print(f"numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}, of 70,000 ones: sum, mean, both with dtype=np.float32")
found = {}
for name, kind in kinds.items():
    ones = np.ones(70_000, kind)
    found[name] = float(ones.sum()), float(ones.sum(dtype=np.float32)), float(ones.mean(dtype=np.float32))
    print(f"  {name}: {found[name][0]:g}, {float(ones.mean()):.2g}, {found[name][1]:g}, {found[name][2]:g}")
    assert found[name][1:] == (70_000, 1)
assert {name: total for name, (total, *_) in found.items()} == dict(zip(kinds, (70_000, 256, 16, 8)))

weights = np.random.default_rng(0).normal(size=100_000).astype(ml_dtypes.bfloat16)
narrow, wide = float(weights.std()), float(weights.astype(np.float32).std())
product = float(np.ones(1_000, ml_dtypes.bfloat16) @ np.ones(1_000, ml_dtypes.bfloat16))
print(f"  standard deviation of 100,000 normal numbers in bfloat16: {narrow:.3f}; of the same in float32: {wide:.3f}")
print(f"  product of two rows of 1,000 ones in bfloat16: {product:g}")
assert narrow < 0.3 and abs(wide - 1) < 0.01 and product == 1_000
PYTHON
