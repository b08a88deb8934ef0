#!/usr/bin/env bash
# The number that item() gives of a sharded tensor's sum is the part of one rank.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, DTensor: a sum, largest value or norm over a sharded dimension is a DTensor that waits for its reduction. Most
operators after it and `full_tensor()` do it; `item()`, `float()` and `bool()` do not, and give what this rank has. So a
check such as `if (weight > 2).any()` takes one branch here and another there, and a logged norm is too small.
"""

import multiprocessing

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    whole = torch.arange(1.0, 9.0)
    sharded = distribute_tensor(whole, init_device_mesh("cpu", (2,)), [Shard(0)])
    asked = {
        "sum().item()": lambda x: x.sum().item(),
        "float(sum())": lambda x: float(x.sum()),
        "max().item()": lambda x: x.max().item(),
        "norm().item()": lambda x: round(x.norm().item(), 3),
        "bool((x > 6).any())": lambda x: bool((x > 6).any()),
    }
    found = {name: (ask(whole), ask(sharded)) for name, ask in asked.items()}
    found["sum().full_tensor().item()"] = whole.sum().item(), sharded.sum().full_tensor().item()
    everyone = [None, None]
    dist.all_gather_object(everyone, found)
    if rank == 0:
        print(f"torch {torch.__version__}, of 1 to 8 on two ranks: of a tensor; of the DTensor on rank 0; on rank 1")
        for name, (plain, first) in found.items():
            second = everyone[1][name][1]
            print(f"  {name}: {plain}; {first}; {second}")
            assert (plain == first == second) == ("full_tensor" in name)
        assert found["sum().item()"][1] == 10 and everyone[1]["sum().item()"][1] == 26
        assert not found["bool((x > 6).any())"][1] and everyone[1]["bool((x > 6).any())"][1]
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(process.exitcode for process in started))
PYTHON
