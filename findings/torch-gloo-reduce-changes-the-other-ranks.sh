#!/usr/bin/env bash
# Over gloo, dist.reduce leaves partial sums in the tensors of the ranks that are to get nothing.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: `dist.reduce` gives the result to one rank. Over gloo the others pass sums on in the tensor that they were called with: afterwards it
can be neither what it was nor the result, and with AVG it is divided too. A loss that is reduced to rank 0 to be logged is another number on each
rank, and what is decided by it, as an early stop or the best model, is decided apart. `all_reduce`, or a copy, is safe.
"""

import multiprocessing

import torch
import torch.distributed as dist


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 3), rank=rank, world_size=3)
    summed, averaged = torch.tensor([3.0**rank]), torch.tensor([3.0**rank])
    dist.reduce(summed, 0)
    dist.reduce(averaged, 0, op=dist.ReduceOp.AVG)
    everyone = [None] * 3
    dist.all_gather_object(everyone, (summed.item(), averaged.item()))
    if rank == 0:
        print(f"torch {torch.__version__}, reduced to rank 0:")
        for number, (total, mean) in enumerate(everyone):
            print(f"  rank {number} had {3.0**number}, and has {total} after SUM, {mean:.3f} after AVG")
        assert everyone[0][0] == 13 and abs(everyone[0][1] - 13 / 3) < 1e-6
        assert sum(total != 3.0**number for number, (total, _) in enumerate(everyone)) == 2
        assert sum(mean != 3.0**number for number, (_, mean) in enumerate(everyone)) == 3
        assert len(set(everyone)) == 3
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(3)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
