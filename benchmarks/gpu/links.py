"""What links carry: one rank of `torchrun links.py DEVICE`; rank 0 prints one JSON object of GB/s per collective.

Sizes are of the whole message; bus bandwidth as nccl-tests count it, so that it compares with a link's rate.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

SIZES = {"cuda": [2**20, 2**26, 2**30], "cpu": [2**16]}


def main() -> None:
    """Times all-reduce, all-gather, reduce-scatter and a message between neighbours."""
    kind, local = sys.argv[1], int(os.environ["LOCAL_RANK"])
    device = torch.device(kind, local if kind == "cuda" else None)
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    share, found = (world - 1) / world, {}
    for size in SIZES[kind]:
        whole = torch.ones(size // 4 // world * world, device=device)
        part = torch.ones(whole.numel() // world, device=device)
        works = {
            "all_reduce": (2 * share, lambda whole=whole: dist.all_reduce(whole)),
            "all_gather": (share, lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part)),
            "reduce_scatter": (share, lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole)),
            "neighbours": (1, lambda whole=whole: dist.send(whole, 1) if rank == 0 else dist.recv(whole, 0)),
        }
        for name, (factor, work) in works.items():
            if name == "neighbours" and rank > 1:
                continue
            for tries in (2, 5):
                began = time.monotonic()
                for _ in range(tries):
                    work()
                if kind == "cuda":
                    torch.cuda.synchronize()
                took = (time.monotonic() - began) / tries
            found[f"{name}_gb_per_second"] = max(
                found.get(f"{name}_gb_per_second", 0), factor * whole.nbytes / took / 1e9
            )
        dist.barrier()
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
