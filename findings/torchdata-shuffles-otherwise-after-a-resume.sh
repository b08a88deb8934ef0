#!/usr/bin/env bash
# After a resume, torchdata's loader shuffles the next epochs otherwise, unless it has workers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchdata==0.11.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torchdata 0.11.0: a `StatefulDataLoader` with `shuffle` and a generator of its own goes on after `load_state_dict` with the very rows
that were left in its epoch. The epochs behind it are in another order than without the interruption, where rows are read in the
process itself; with one worker they are in the same order. A state taken between two epochs has this too.
"""

from importlib.metadata import version

import torch
from torchdata.stateful_dataloader import StatefulDataLoader


def loader(workers):
    """A loader as a script makes it, at its first start and at a resume."""
    generator = torch.Generator().manual_seed(5)
    return StatefulDataLoader(range(20), batch_size=4, shuffle=True, generator=generator, num_workers=workers)


def rows(batches):
    """The rows of batches, in a list."""
    return [row for batch in batches for row in batch.tolist()]


print(f"torchdata {version('torchdata')}, whether epochs 1 to 3 are those of a run without interruption:")
for workers in (0, 1):
    whole = loader(workers)
    expected = [rows(whole) for _ in range(3)]
    for taken in (2, 5):
        first = loader(workers)
        batches = iter(first)
        start = rows(next(batches) for _ in range(taken))
        if taken == 5:
            assert next(batches, None) is None
        state = first.state_dict()
        del batches
        resumed = loader(workers)
        resumed.load_state_dict(state)
        rest = rows(resumed) if taken == 2 else []
        found = [start + rest, *(rows(resumed) for _ in range(2))]
        same = [one == two for one, two in zip(found, expected, strict=True)]
        print(f"  {workers} workers, state after {taken} of 5 batches: {same}")
        assert same == [True, workers == 1, workers == 1] and all(sorted(epoch) == list(range(20)) for epoch in found)
PYTHON
