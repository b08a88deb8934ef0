#!/usr/bin/env bash
# safetensors.flax gives 2,147,483,655 as -2,147,483,641, and 1e300 as infinity.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6 safetensors==0.8.0 flax==0.12.8 jax==0.10.2
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""safetensors 0.8.0 with jax 0.10.2: `safetensors.flax.load_file` makes arrays of JAX, which has no 64-bit numbers unless told so: int64
is wrapped to int32 and float64 rounded to float32, or made infinite. Of int64 nothing is said. Saved again the file says I32 and F32.
So hashes, offsets and counts of tokens come back as other numbers. `jax.config.update("jax_enable_x64", True)` keeps them.
"""

from importlib.metadata import version

import jax
import numpy as np
import safetensors.flax
import safetensors.numpy

given = {"count": np.array([2**31 + 7, 2**40 + 1, 5]), "value": np.array([1 / 3, 1e300])}
safetensors.numpy.save_file(given, "state.safetensors")


def opened():
    return {name: np.asarray(array) for name, array in safetensors.flax.load_file("state.safetensors").items()}


narrow = opened()
safetensors.flax.save_file(safetensors.flax.load_file("state.safetensors"), "again.safetensors")
again = safetensors.numpy.load_file("again.safetensors")
jax.config.update("jax_enable_x64", True)
wide = opened()
print(f"safetensors {version('safetensors')}, jax {jax.__version__}:")
for name, array in given.items():
    print(f"  {array.tolist()} ({array.dtype}): {narrow[name].tolist()} ({narrow[name].dtype}), with x64 {wide[name].tolist()}")
    assert wide[name].tolist() == array.tolist() and again[name].dtype == narrow[name].dtype != array.dtype
    assert again[name].tolist() == narrow[name].tolist()
assert narrow["count"].tolist() == [-(2**31) + 7, 1, 5] and narrow["value"][1] == np.inf
PYTHON
