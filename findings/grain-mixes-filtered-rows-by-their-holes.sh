#!/usr/bin/env bash
# Grain mixes filtered data sets by what they were before the filter: shares of half and half become four to one.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grain==0.2.18 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""grain 0.2.18: a filtered MapDataset keeps its length and has holes where rows were dropped, and `MapDataset.mix` counts them as rows. Of two sources with weights of a half each, of
which one keeps a quarter of its rows, that one gives a fifth of the mixture, and the reader skips the holes; it warns of a filter that drops nine of ten. `len` and epochs count them too.
Mixed as streams (`to_iter_dataset` before `IterDataset.mix`), the shares are those of the weights.
"""

from importlib.metadata import version

import grain

count = 1000
plain = grain.MapDataset.range(count)
filtered = grain.MapDataset.range(count, 2 * count).filter(lambda number: number % 4 == 0)


def share(rows):
    return sum(number >= count for number in rows) / len(rows)


mixed = list(grain.MapDataset.mix([plain, filtered], weights=[0.5, 0.5]).to_iter_dataset())
streams = grain.IterDataset.mix([plain.to_iter_dataset(), filtered.to_iter_dataset()], weights=[0.5, 0.5])
streamed = list(streams)
print(f"grain {version('grain')}, a source of {count:,} rows and one of {count:,} of which a filter keeps {len(list(filtered))}; len says {len(filtered):,}")
print(f"  weights of a half each, share of the filtered one in MapDataset.mix: {share(mixed):.3f} of {len(mixed):,} rows")
print(f"  in IterDataset.mix: {share(streamed):.3f} of {len(streamed):,} rows")
assert len(filtered) == count and len(list(filtered)) == count // 4
assert 0.18 < share(mixed) < 0.22 and 0.45 < share(streamed) < 0.55
PYTHON
