#!/usr/bin/env bash
# With replicas, FSDP2 trains as many models as there are replicas where ranks began with other weights.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: DDP sends the first rank's weights and buffers to all as it wraps a model; `fully_shard` takes from each rank what that has. On
a mesh with replicas, gradients are averaged over them and the weights are never compared: where ranks begin with other weights, as new
layers have under a seed for each rank, replicas stay apart by that for ever. `full_tensor()`, by which checkpoints are made, gives
each its own, and nothing is said.
"""

import multiprocessing

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def trained(rank, wrap):
    torch.manual_seed(rank)
    model = wrap(torch.nn.Linear(2, 2, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.ones(1, 2) * (rank + 1)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    (weight,) = model.parameters()
    whole = (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach()
    everyone = [torch.zeros_like(whole) for _ in range(2)]
    dist.all_gather(everyone, whole.contiguous())
    return (everyone[0] - everyone[1]).abs().max().item()


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    replicas = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replica", "shard"))
    shards = init_device_mesh("cpu", (2,))
    ways = {
        "DDP": DistributedDataParallel,
        "FSDP2, two shards": lambda model: fully_shard(model, mesh=shards),
        "FSDP2, two replicas": lambda model: fully_shard(model, mesh=replicas),
    }
    if rank == 0:
        print(f"torch {torch.__version__}, how far the weights of two ranks are apart after five steps:")
    for name, wrap in ways.items():
        apart = trained(rank, wrap)
        if rank == 0:
            print(f"  {name}: {apart:.3f}")
        assert apart > 0.1 if "replicas" in name else apart == 0
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
