#!/usr/bin/env bash
# litdata gives every row that is a list the length of the first one, and every tensor its type.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litdata==0.2.76 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""litdata 0.2.76: a data set keeps one description of its rows, taken from the first one. A row
that is a list is as many fields as it had numbers there: of later rows that are shorter zeros
stand behind what they have, of longer ones the rest is gone, and lists in lists are cut elsewhere.
A one-dimensional tensor has the type of the first one: whole numbers behind fractions are read bit
by bit as fractions. Lists under a key, as {"ids": [...]}, and tensors alike in type come back as
they were. Nothing is said.
"""

import tempfile
from importlib.metadata import version

import torch
from litdata.streaming import Cache


def kept(rows):
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(folder, chunk_size=100)
        for place, row in enumerate(rows):
            cache[place] = row
        cache.done()
        cache.merge()
        return [cache[place] for place in range(len(rows))]


print(f"litdata {version('litdata')}, rows as written and as read:")
for rows, read in (
    ([[5, 6], [7], [8, 9, 10]], [[5, 6], [7, 0], [8, 9]]),
    ([[[1, 2], [3]], [[1], [2, 3]]], [[[1, 2], [3]], [[1, 2], [3]]]),
    ([{"ids": [5, 6]}, {"ids": [7]}], [{"ids": [5, 6]}, {"ids": [7]}]),
    ([[5, 6], [7, 8]], [[5, 6], [7, 8]]),
):
    found = kept(rows)
    print(f"  {rows}: {found}")
    assert found == read
for rows, same in (
    ([torch.tensor([0.5, 1.5]), torch.tensor([2, 3])], False),
    ([torch.tensor([5, 6]), torch.tensor([7])], True),
):
    found = kept(rows)
    print(f"  {[row.tolist() for row in rows]} as tensors: {[row.tolist() for row in found]}")
    assert all(torch.equal(one, other) for one, other in zip(rows, found, strict=True)) == same
PYTHON
