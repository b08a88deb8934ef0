#!/usr/bin/env bash
# TensorBoard's scalars are float32: counts of tokens and times are rounded as they are logged.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 tensorboard==2.21.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0 with TensorBoard 2.21.0: `SummaryWriter.add_scalar` stores each value as float32.
Counts beyond 16,777,216 are rounded, which a run's tokens are within minutes, and times in seconds
are off by up to a minute: rates that are computed from two logged values come out as nothing or
as double. `double_precision=True` stores them as they are; it is off unless asked for.
"""

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
from torch.utils.tensorboard import SummaryWriter

tokens = [1_000_000_000 + 32 * step for step in range(5)]
seconds = [1_700_000_000.0 + 10 * step for step in range(5)]
writer = SummaryWriter("log")
for step, (count, second) in enumerate(zip(tokens, seconds)):
    writer.add_scalar("tokens", count, step)
    writer.add_scalar("seconds", second, step)
    writer.add_scalar("precise", count, step, new_style=True, double_precision=True)
writer.close()
events = EventAccumulator("log")
events.Reload()
print(f"torch {torch.__version__}, steps between the values that are logged, and those that are read:")
for name, values in (("tokens", tokens), ("seconds", seconds), ("precise", tokens)):
    if name == "precise":
        read = [tensor_util.make_ndarray(event.tensor_proto).item() for event in events.Tensors(name)]
    else:
        read = [event.value for event in events.Scalars(name)]
    wanted, got = ([later - earlier for earlier, later in zip(row, row[1:])] for row in (values, read))
    print(f"  {name}: {wanted}, {got}")
    assert (wanted == got) == (name == "precise")
    assert name == "precise" or set(got) <= {0, 64, 128}
PYTHON
