#!/usr/bin/env bash
# tfrecord drops the zero bytes at the end of byte strings where a row has several, and with them token IDs.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tfrecord==1.14.6 crc32c==2.9.post0 protobuf==7.36.2 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""tfrecord 1.14.6: a feature with one byte string comes back as it was. One with several comes back as a numpy array of byte strings,
which have no zeros at their end: token IDs kept as little-endian bytes lose the upper half of the last one, or every padding ID of 0, so that
a row is shorter than it was or cannot be read as numbers. The writer and the file are right. It depends on the number of strings alone.
"""

from importlib.metadata import version

import numpy as np
import tfrecord

rows = [[5, 6, 7], [8, 0, 0], [70000, 256, 3]]
print(f"tfrecord {version('tfrecord')}, IDs of 32 bits as bytes:")
for several in (False, True):
    writer = tfrecord.TFRecordWriter("rows.tfrecord")
    packed = [np.array(row, "<i4").tobytes() for row in rows]
    for part in [packed] if several else packed:
        writer.write({"ids": (part, "byte")})
    writer.close()
    found = [one for row in tfrecord.tfrecord_loader("rows.tfrecord", None) for one in (row["ids"] if several else [row["ids"]])]
    found = [bytes(one) for one in found]
    for row, one in zip(rows, found, strict=True):
        print(f"  {'three in a row' if several else 'one in a row'}: {row}, 12 bytes, read as {len(one)}")
    assert [len(one) for one in found] == ([9, 1, 9] if several else [12, 12, 12])
    assert (found == packed) is not several
PYTHON
