#!/usr/bin/env bash
# On CPU, the parts of a new layer that FSDP2's ranks draw under one seed are all the same numbers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: a layer that is made on the meta device, given to `fully_shard` and filled by `reset_parameters` under one seed is, on CUDA, the
layer that one process would make. On CPU each rank begins its own part with the same numbers: half of the rows are copies, and so are the
rows that dropout zeroes. A warning says that random operators "may not have complete support". Fill the layer before it is sharded.
"""

import multiprocessing
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, ones

warnings.simplefilter("ignore")


def made(mesh, on_meta):
    torch.manual_seed(0)
    with torch.device("meta" if on_meta else "cpu"):
        layer = torch.nn.Linear(8, 8, bias=False)
    fully_shard(layer, mesh=mesh)
    if on_meta:
        layer.to_empty(device="cpu")
        torch.manual_seed(0)
        layer.reset_parameters()
    return layer.weight.full_tensor().detach()


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    alone = torch.nn.Linear(8, 8, bias=False).weight.detach()
    before, after = made(mesh, on_meta=False), made(mesh, on_meta=True)
    torch.manual_seed(0)
    dropped = torch.nn.functional.dropout(ones(8, 64, device_mesh=mesh, placements=[Shard(0)]), 0.5).full_tensor()
    if rank == 0:
        print(f"torch {torch.__version__}, different rows of eight, on two ranks:")
        for name, rows in (("filled, then sharded", before), ("sharded, then filled", after), ("dropout", dropped)):
            print(f"  {name}: {len(rows.unique(dim=0))}")
        assert torch.equal(before, alone) and len(before.unique(dim=0)) == 8
        assert torch.equal(after[:4], after[4:]) and torch.equal(dropped[:4], dropped[4:])
        assert len(after.unique(dim=0)) == len(dropped.unique(dim=0)) == 4
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
