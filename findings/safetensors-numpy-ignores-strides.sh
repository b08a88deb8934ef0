#!/usr/bin/env bash
# safetensors saves a transposed numpy array with its numbers in the wrong places.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check safetensors==0.8.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""safetensors 0.8.0: `save_file` of `safetensors.numpy` writes an array's numbers in the order in
which they lie in memory, and its shape as it is seen. A transposed matrix, which is a view, comes
back with its numbers in other places, and so does one in Fortran's order and every other column of
one. Its file is valid and of the right size. For PyTorch's tensors `safetensors.torch` raises an
error.
"""

from importlib.metadata import version

import numpy
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

matrix = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
print(f"safetensors {version('safetensors')}, arrays as given and as loaded:")
for name, given, kept in (
    ("matrix", matrix, True),
    ("transposed", matrix.T, False),
    ("in Fortran's order", numpy.asfortranarray(matrix), False),
    ("every other column", matrix[:, ::2], False),
    ("transposed and copied", numpy.ascontiguousarray(matrix.T), True),
):
    save_file({"weight": given}, "arrays.safetensors")
    found = load_file("arrays.safetensors")["weight"]
    print(f"  {name}: {given.tolist()}, {found.tolist()}")
    assert found.shape == given.shape and numpy.array_equal(found, given) == kept

try:
    save_tensors({"weight": torch.from_numpy(matrix).T}, "tensors.safetensors")
    raise SystemExit("safetensors.torch saved a transposed tensor")
except ValueError as error:
    print(f"  safetensors.torch: {str(error).strip()[:60]}")
PYTHON
