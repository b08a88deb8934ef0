#!/usr/bin/env bash
# Over gloo the largest of 1, NaN and 3 on three ranks is 1, NaN or 3, as it happens.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `all_reduce` with MAX over gloo compares as C++ does, and a NaN is then larger or smaller than nothing. What comes of 1, NaN and 3
depends on the order in which ranks are met, which is another one for each part of a tensor: the NaN is hidden, and what was the largest
with it. So with MIN, and with `max()` of a sharded tensor, by which the norm of gradients is clipped where `norm_type` is infinite. SUM keeps NaN.
"""

import multiprocessing

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

nan = float("nan")


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 3), rank=rank, world_size=3)
    own = torch.full((5,), (1.0, nan, 3.0)[rank])
    most, total = own.clone(), own.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    mesh = init_device_mesh("cpu", (3,))
    largest = {}
    for place in range(3):
        whole = torch.tensor([1.0, 2.0, 3.0])
        whole[place] = nan
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        largest[str(whole.tolist())] = sharded.max().full_tensor().item()
        assert whole.max().isnan() and sharded.sum().full_tensor().isnan()
    if rank == 0:
        print(f"torch {torch.__version__}, on three ranks:")
        print(f"  five times 1, NaN and 3: MAX {most.tolist()}, SUM {total.tolist()}")
        for whole, found in largest.items():
            print(f"  max() of the sharded tensor {whole}: {found}")
        assert total.isnan().all()
        assert most[0] == 1 and most.isnan().any() and not most.isnan().all()
        assert sum(found == found for found in largest.values()) == 2
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(3)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
