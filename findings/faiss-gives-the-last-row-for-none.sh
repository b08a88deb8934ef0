#!/usr/bin/env bash
# faiss marks what it has not found as -1, which is the last document of any list in Python.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check faiss-cpu==1.15.1 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""faiss-cpu 1.15.1: `search` fills up with -1 where it finds fewer rows than asked for, which an
index with cells does often: by default it looks into one of them, however many rows the others
hold. In Python's lists and numpy's arrays -1 is the last row, so that `documents[found]` puts the
last document into answers it has nothing to do with. The distance there is the largest float32;
for inner products, where large is near, the smallest.
"""

from importlib.metadata import version

import faiss
import numpy

rows = numpy.random.default_rng(0).standard_normal((1000, 16)).astype(numpy.float32)
documents = [f"document {place}" for place in range(len(rows))]
cells = faiss.IndexIVFFlat(faiss.IndexFlatL2(16), 16, 100)
cells.train(rows)
cells.add(rows)
flat = faiss.IndexFlatL2(16)
flat.add(rows)

print(f"faiss-cpu {version('faiss-cpu')}, the 20 nearest of 1,000 rows for 100 queries:")
for name, index, look in (("IVF", cells, 1), ("IVF", cells, 16), ("flat", flat, None)):
    if look:
        index.nprobe = look
    distances, found = index.search(rows[:100], 20)
    taken = numpy.array(documents)[found]
    last = int((taken == documents[-1]).sum())
    empty = int((found == -1).sum())
    print(f"  {name}, cells looked into {look}: {empty} of 2000 are -1, {last} are {documents[-1]!r}")
    assert last == empty + int((found == len(rows) - 1).sum())
    assert (empty > 500) == (look == 1) and (look == 1 or empty == 0)
    assert (distances[found == -1] == numpy.finfo(numpy.float32).max).all()
PYTHON
