#!/usr/bin/env bash
# zarr gives zeros for token IDs whose file is missing, and says nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check zarr==3.1.6 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""zarr 3.1.6: a chunk whose file is not there is a chunk of the fill value, 0 unless it is set, by
design: what was not written takes no room. A copy that broke off, or an upload with a part
missing, so opens without an error, has the right shape, and gives zeros where token IDs were: a
training sees rows of the token 0. `nchunks_initialized` is the one trace.
"""

import os
from importlib.metadata import version

import numpy
import zarr

tokens = numpy.arange(1, 13, dtype=numpy.uint16)
array = zarr.create_array("tokens.zarr", shape=tokens.shape, chunks=(4,), dtype="uint16")
array[:] = tokens
print(f"zarr {version('zarr')}:")
for lost in (None, "1"):
    if lost:
        os.remove(f"tokens.zarr/c/{lost}")
    opened = zarr.open_array("tokens.zarr", mode="r")
    found = opened[:]
    there = f"{opened.nchunks_initialized} of {opened.nchunks} chunks"
    print(f"  without the file of chunk {lost}: {found.tolist()}, {there}")
    wanted = tokens.copy()
    if lost:
        wanted[4:8] = 0
    assert numpy.array_equal(found, wanted) and opened.shape == tokens.shape
    assert opened.nchunks_initialized == (2 if lost else 3)
PYTHON
