#!/usr/bin/env bash
# A distributed checkpoint is cast, without a word, to the types of what it is loaded into.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `torch.distributed.checkpoint.load` fills tensors that are there, and refuses those of another shape, not those of another type. 70,000 becomes infinite in
float16, 2.75 is 2 among whole numbers, a count beyond 2**24 is rounded in float32, and a float32 weight is rounded to bfloat16: a run that is resumed with another
dtype, or with a state that begins as whole numbers, goes on from other values. Compare the types in the checkpoint's metadata first.
"""

import warnings

import torch
import torch.distributed.checkpoint as checkpoint

warnings.simplefilter("ignore")
saved = {
    "large": torch.tensor([70000.0]),
    "fraction": torch.tensor([2.75]),
    "count": torch.tensor([2**24 + 1]),
    "weight": torch.tensor([1.001]),
}
checkpoint.save(saved, checkpoint_id="saved")
loaded = {
    "large": torch.zeros(1, dtype=torch.float16),
    "fraction": torch.zeros(1, dtype=torch.int64),
    "count": torch.zeros(1),
    "weight": torch.zeros(1, dtype=torch.bfloat16),
}
checkpoint.load(loaded, checkpoint_id="saved")
print(f"torch {torch.__version__}:")
for name, value in saved.items():
    print(f"  {name}: {value.item()} of {value.dtype} is {loaded[name].item()} of {loaded[name].dtype}")
assert [loaded[name].item() for name in saved] == [float("inf"), 2, 2**24, 1]
try:
    checkpoint.load({"weight": torch.zeros(2)}, checkpoint_id="saved")
    raise SystemExit("another shape is taken")
except (checkpoint.CheckpointException, ValueError):
    print("  another shape: refused")
PYTHON
