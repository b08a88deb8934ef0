#!/usr/bin/env bash
# TensorBoard's reader gives 10 of 200 logged values, and says nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tensorboard==2.21.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""TensorBoard 2.21.0: `EventAccumulator`, by which scripts read a run's log, keeps a random 10,000 of the scalars of a name. Values that
are logged as tensors, as `double_precision=True` needs them with `new_style=True` of torch 2.13.0 and as TensorFlow 2 logs all scalars, it
keeps 10 of, with the last one among them and the first not. Plots and means over the run are of those. `size_guidance={"tensors": 0}` keeps all.
"""

from importlib.metadata import version

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("log")
for step in range(12_000):
    writer.add_scalar("simple", step, step)
    if step < 200:
        writer.add_scalar("precise", step, step, new_style=True, double_precision=True)
writer.close()


def read(**settings):
    events = EventAccumulator("log", **settings)
    events.Reload()
    return [[event.step for event in kind] for kind in (events.Scalars("simple"), events.Tensors("precise"))]


(simple, precise), (all_simple, all_precise) = read(), read(size_guidance={"scalars": 0, "tensors": 0})
print(f"TensorBoard {version('tensorboard')}, torch {torch.__version__}, steps that are read unless told otherwise, and of all:")
print(f"  of 12,000 scalars: {len(simple)}, {len(all_simple)}; of 200 with double precision: {precise}, {len(all_precise)}")
assert len(simple) == 10_000 and all_simple == list(range(12_000)) and all_precise == list(range(200))
assert len(precise) == 10 and precise[-1] == 199 and precise[0] > 0
PYTHON
