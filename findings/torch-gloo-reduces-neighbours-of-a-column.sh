#!/usr/bin/env bash
# Over gloo a column of a matrix is reduced and broadcast as if it were the matrix's first numbers.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0: gloo's collectives read and write as many numbers in memory, from a tensor's first one on, as it has, also where it is a view with steps between
them. `all_reduce` of a matrix's first column leaves most of that column as each rank had it, and adds up what stands beside it, which was not asked for.
`broadcast` likewise. NCCL refuses such tensors. Nothing is said here.
"""

import multiprocessing

import torch
import torch.distributed as dist


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 3), rank=rank, world_size=3)
    matrix = torch.arange(6.0).reshape(3, 2)
    summed, sent = matrix.clone(), matrix + 10 * rank
    right, wrong = matrix.clone(), matrix.clone()
    right[:, 0] *= 3
    wrong.view(-1)[:3] *= 3
    dist.all_reduce(summed[:, 0])
    dist.broadcast(sent[:, 0], 0)
    mended = matrix.clone()
    column = mended[:, 0].contiguous()
    dist.all_reduce(column)
    mended[:, 0] = column
    if rank == 2:
        print(f"torch {torch.__version__}, three ranks, the first column of {matrix.tolist()}:")
        print(f"  all_reduce: {summed.tolist()}, where {right.tolist()} was meant")
        print(f"  broadcast of rank 0's to one with 20 more: {sent.tolist()}")
        print(f"  all_reduce of a copy without steps: {mended.tolist()}")
        assert torch.equal(summed, wrong) and torch.equal(mended, right)
        assert sent.tolist() == [[0, 1], [2, 23], [24, 25]]
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in range(3)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
