#!/usr/bin/env bash
# accelerate's gather_for_metrics counts rows twice where the data set is a stream.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""accelerate 1.15.0: `gather_for_metrics` takes off the rows that were repeated to fill the last
batch. For a data set that is a stream, of which each process takes its own part
(`dispatch_batches=False`), it leaves them in: of seven rows on two processes eight are counted,
the first one twice, and of nine twelve. With a data set that has a length, and with the batches
handed out by the first process, all rows are there once. Nothing is said.
"""

import os
from importlib.metadata import version

import torch
import torch.multiprocessing as processes
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.arange(self.count))


def gathered(accelerator, rows):
    loader = accelerator.prepare(DataLoader(rows, batch_size=2))
    return sorted(row for batch in loader for row in accelerator.gather_for_metrics(batch).tolist())


def work(rank, dispatch, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    for count in (7, 8, 9):
        found = {"stream": gathered(accelerator, Stream(count))}
        if not dispatch:
            found["tensor"] = gathered(accelerator, torch.arange(count))
        for kind, rows in found.items():
            if rank == 0:
                print(f"  {kind} of {count} rows, dispatch_batches={dispatch}: {rows}", flush=True)
            repeated = kind == "stream" and not dispatch and count != 8
            assert (rows == list(range(count))) != repeated
            assert not repeated or (sorted(set(rows)) == list(range(count)) and len(rows) % 4 == 0)
    accelerator.end_training()


print(f"accelerate {version('accelerate')}, rows that two processes gather:", flush=True)
for dispatch, port in ((False, "29611"), (True, "29612")):
    processes.start_processes(work, (dispatch, port), nprocs=2, start_method="fork")
PYTHON
