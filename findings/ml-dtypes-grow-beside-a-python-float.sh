#!/usr/bin/env bash
# A bfloat16 array of numpy times 2.0 is float32, and times 2 it is bfloat16.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2
cd "$folder"
env -u PYTHONPATH JAX_PLATFORMS=cpu "$folder/venv/bin/python" - <<'PYTHON'
"""ml_dtypes 0.6.0: numpy 2 lets a plain float of Python take the type of the array beside it, so float16 times 2.0 stays float16. The types of ml_dtypes
are left out of that: beside a plain float bfloat16 and float8 become float32, and in `numpy.where` float64 or float32, while a plain whole number
leaves them as they are. A scaled copy of weights takes two, four or eight times the memory, and a file written of it too. jax, whose
arrays have the same types, keeps them. `array.dtype.type(2.0)` in place of 2.0 does so in numpy.
"""

from importlib.metadata import version

import jax.numpy as jnp
import ml_dtypes
import numpy as np

print(f"numpy {np.__version__}, ml_dtypes {version('ml_dtypes')}, types of:")
wanted = {
    "float16": ["float16"] * 4,
    "bfloat16": ["bfloat16", "float32", "float32", "float64"],
    "float8_e4m3fn": ["float8_e4m3fn", "float32", "float32", "float64"],
    "float8_e5m2": ["float8_e5m2", "float32", "float32", "float32"],
}
for name, expected in wanted.items():
    kind = getattr(ml_dtypes, name, np.float16)
    weights = np.ones(4, kind)
    found = {
        "times 2": weights * 2,
        "times 2.0": weights * 2.0,
        "maximum of 0.0": np.maximum(weights, 0.0),
        "where, or 0.0": np.where(weights > 0, weights, 0.0),
    }
    print(f"  {name}: " + ", ".join(f"{asked} {value.dtype} of {value.nbytes} bytes" for asked, value in found.items()))
    assert [value.dtype.name for value in found.values()] == expected
    assert (weights * kind(2.0)).dtype == (jnp.asarray(weights) * 2.0).dtype == weights.dtype
PYTHON
