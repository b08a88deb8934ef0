#!/usr/bin/env bash
# h5py writes every token ID above 65,535 into a data set of uint16 as 65,535.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check h5py==3.16.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""h5py 3.16.0: an array whose numbers do not fit the type of the data set is clipped to its range,
and nothing is said: all the ID's of a large vocabulary that are above 65,535 become one token, and
-100 becomes 0. numpy refuses a single number that does not fit, and wraps arrays; h5py refuses a
single number too, and clips arrays. The same is done by `create_dataset` with `data` and `dtype`.
Fractions lose their digits, and float16 becomes infinite.
"""

import h5py
import numpy

ids = numpy.array([128000, 65535, 65536, 70000, 198, -100])
with h5py.File("rows.h5", "w") as file:
    rows = file.create_dataset("rows", shape=(6,), dtype="uint16")
    rows[:] = ids
    written = rows[:].tolist()
    made = file.create_dataset("made", data=ids, dtype="uint16")[:].tolist()
    scores = file.create_dataset("scores", data=numpy.array([0.9, -1.7, 300.0]), dtype="int8")[:].tolist()
    try:
        rows[0] = 70000
        alone = rows[0]
    except OverflowError as error:
        alone = str(error)
print(f"h5py {h5py.__version__}, token IDs {ids.tolist()} as uint16:")
print(f"  written: {written}; as create_dataset makes them: {made}; numpy: {ids.astype('uint16').tolist()}")
print(f"  70000 alone: {alone}")
print(f"  scores of 0.9, -1.7 and 300 as int8: {scores}")
assert written == made == [65535, 65535, 65535, 65535, 198, 0]
assert scores == [0, -1, 127] and "out of bounds" in str(alone)
PYTHON
