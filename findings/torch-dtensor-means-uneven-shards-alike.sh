#!/usr/bin/env bash
# The mean squared error of a tensor in uneven shards weighs each shard alike.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, DTensor: `mse_loss`, `huber_loss`, `smooth_l1_loss` and `binary_cross_entropy_with_logits` of tensors that are
sharded in unequal parts, as 3 rows over 2 ranks are, come out as the mean of the means of the parts: the third row counts as much as
the first two together. `mean()` weighs the parts by their sizes, and `cross_entropy` refuses such parts.
"""

import multiprocessing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

losses = {
    "mse_loss": F.mse_loss,
    "huber_loss": F.huber_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "square of the difference, mean()": lambda made, wanted: (made - wanted).square().mean(),
}


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    pair = torch.tensor([[0.0], [0.0], [1.0]]), torch.zeros(3, 1)
    for name, loss in losses.items():
        whole = loss(*pair).item()
        sharded = loss(*(distribute_tensor(one, mesh, [Shard(0)]) for one in pair)).full_tensor().item()
        if rank == 0:
            print(f"  {name}: {whole:.4f} of whole tensors, {sharded:.4f} of DTensors")
            assert (abs(whole - sharded) < 1e-6) == ("mean()" in name)
    dist.barrier()
    dist.destroy_process_group()


print(f"torch {torch.__version__}, errors 0, 0 and 1 in shards of two rows and one:", flush=True)
started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(process.exitcode for process in started))
PYTHON
