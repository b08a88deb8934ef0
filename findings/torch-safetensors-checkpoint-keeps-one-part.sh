#!/usr/bin/env bash
# PyTorch's checkpoint writer for safetensors keeps one rank's part of sharded weights.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 safetensors==0.8.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `HuggingFaceStorageWriter` takes it, unless told `save_distributed=True`, that one rank has the whole state. Given the sharded state of
FSDP2 it does not say so: all ranks write the same file, and that of the last one remains. Where that is the first part, loading fails, for the shape is
another; where it is the last part, the missing rows stay as they were in memory, and a model goes on with half of its weights anew.
"""

import logging
import multiprocessing
import os
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from safetensors import safe_open
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(1.0, 25.0).reshape(8, 3)
    for name, options in (("default", {}), ("save_distributed", {"save_distributed": True})):
        os.makedirs(name, exist_ok=True)
        saved = {"weight": distribute_tensor(whole, mesh, [Shard(0)])}
        checkpoint.save(saved, storage_writer=HuggingFaceStorageWriter(name, **options))
        dist.barrier()
        loaded = {"weight": distribute_tensor(torch.zeros(8, 3), mesh, [Shard(0)])}
        try:
            checkpoint.load(loaded, storage_reader=HuggingFaceStorageReader(name))
            refused = False
        except checkpoint.CheckpointException:
            refused = True
        rows = loaded["weight"].full_tensor()
        if rank == 0:
            held = {}
            for file in sorted(os.listdir(name)):
                if file.endswith(".safetensors"):
                    with safe_open(os.path.join(name, file), "pt") as opened:
                        held[file] = tuple(opened.get_tensor("weight").shape)
            right = (rows == whole).all(1).sum().item()
            said = "refused" if refused else f"{right} of 8 rows are loaded, {(rows == 0).all(1).sum().item()} are zeros"
            print(f"  {name}: saved without an error, {held}; {said}")
            if options:
                assert list(held.values()) == [(4, 3), (4, 3)] and not refused and right == 8
            else:
                assert list(held.values()) == [(4, 3)] and (refused or (right == 4 and torch.equal(rows[:4], rows[:4] * 0)))
    dist.barrier()
    dist.destroy_process_group()


print(f"torch {torch.__version__}, a weight of 8 rows and 3 columns, sharded over two ranks:", flush=True)
started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
