#!/usr/bin/env bash
# A distributed checkpoint keeps one rank's value of what each rank has under the same name.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""torch 2.13.0, distributed checkpoint: values under one name are taken to be copies. State that each rank has for itself, as
random state and the place in its data, is kept of one rank, and all are handed that one: ranks draw the same random numbers and
read the same rows after a resume, and nothing is said. Of tensors it was rank 0's, of other objects another rank's, so that the parts
need not even belong together.
"""

import multiprocessing

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    own = {"random": torch.tensor([100 + rank]), "data": {"row": 100 + rank}}
    checkpoint.save(own, checkpoint_id="saved")
    loaded = {"random": torch.zeros(1, dtype=torch.long), "data": {"row": 0}}
    checkpoint.load(loaded, checkpoint_id="saved")
    everyone = [None, None]
    dist.all_gather_object(everyone, (own["random"].item(), own["data"]["row"], loaded["random"].item(), loaded["data"]["row"]))
    if rank == 0:
        print(f"torch {torch.__version__}")
        for number, (random, row, loaded_random, loaded_row) in enumerate(everyone):
            print(f"  rank {number} saved a tensor {random} and an object {row}; loaded {loaded_random} and {loaded_row}")
        assert everyone[0][:2] == (100, 100) and everyone[1][:2] == (101, 101)
        assert everyone[0][2:] == everyone[1][2:] == (100, 101)
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(process.exitcode for process in started))
PYTHON
