#!/usr/bin/env bash
# Rows that datasets skips are other ones once a stream is split over processes: held-out rows are trained on.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pyarrow==26.0.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""datasets 5.2.0: `rows.take(6)` for evaluation and `rows.skip(6)` for training part a stream, until the latter is split by
`split_dataset_by_node` (or over the workers of a DataLoader). The split goes through to the shards below, and each process
skips its share of the six in its own shards: rows that evaluation has are trained on, others are in neither, and which
ones hangs on the number of processes. The documentation says that the first rows are skipped; nothing is said.
"""

from importlib.metadata import version

from datasets import Dataset
from datasets.distributed import split_dataset_by_node

HELD_OUT, ROWS = 6, 24
rows = Dataset.from_dict({"row": list(range(ROWS))}).to_iterable_dataset(num_shards=4)
evaluation = [one["row"] for one in rows.take(HELD_OUT)]


def trained(processes):
    parts = [split_dataset_by_node(rows.skip(HELD_OUT), rank=rank, world_size=processes) for rank in range(processes)]
    return sorted(one["row"] for part in parts for one in part)


print(f"datasets {version('datasets')}, rows {evaluation} are held out by take:")
for processes in (1, 2, 4):
    found = trained(processes)
    both, neither = set(evaluation) & set(found), set(range(ROWS)) - {*evaluation, *found}
    print(f"  {processes} processes: {sorted(both)} trained as well, {sorted(neither)} in neither")
    assert len(found) == ROWS - HELD_OUT and len(both) == len(neither) == {1: 0, 2: 3, 4: 4}[processes]
PYTHON
