#!/usr/bin/env bash
# DeepSpeed's torch_autocast takes 4 GB of a GPU for the gradients of any model, however small.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 setuptools wheel ninja
DS_BUILD_OPS=0 "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation deepspeed==0.19.8
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR="$folder/built" "$folder/venv/bin/python" - <<'PYTHON'
"""deepspeed 0.19.8: with `torch_autocast` ZeRO keeps a buffer of `reduce_bucket_size` elements (5e8 by default) for each
type that gradients are sent in. Linear layers have bfloat16, norms and embeddings float32, and in stages 1 and 2 both
buffers are in float32: 2 x 2 GB in every backward, whatever the model needs. In stage 3 they are 1 and 2 GB, for good.
Without `torch_autocast` there is one. The documentation has the key, and not that there are several.
"""

import os
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29619", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
import deepspeed

# Of messages within a machine, which it would compile a program for.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
deepspeed.init_distributed(dist_backend="gloo")


class Buckets(TorchDispatchMode):
    """The bytes of every tensor of a bucket's size."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.empty.memory_format and made.numel() == 500_000_000:
            self.found.append(made.nbytes)
        return made


def buckets(stage, **more):
    model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer, "zero_optimization": {"stage": stage}, **more}
    with Buckets() as seen:
        engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
        engine.backward(engine(torch.zeros(1, 4, dtype=torch.long)).float().sum())
    return seen.found


autocast = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
found = {stage: buckets(stage, **autocast) for stage in (1, 2, 3)}
plain = {stage: buckets(stage) for stage in (1, 2, 3)}
for stage in (1, 2, 3):
    print(f"stage {stage}: {found[stage]} bytes of buckets under torch_autocast, {plain[stage]} without")
assert sum(found[1]) == sum(found[2]) == 4_000_000_000 and sum(found[3]) == 3_000_000_000
assert all(len(one) == 1 for one in plain.values())
PYTHON
