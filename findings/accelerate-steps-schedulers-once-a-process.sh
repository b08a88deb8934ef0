#!/usr/bin/env bash
# accelerate steps a prepared scheduler once for each process: on eight GPUs the learning rate is at its end after an eighth of the steps.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""accelerate 1.15.0: `scheduler.step()` of a scheduler that `prepare` has returned makes as many steps as there are processes, unless the loader has `split_batches`.
A schedule that is written over the steps of a run, as it would be for PyTorch or DeepSpeed alone, warms up and decays that much faster: on two processes a rate that
falls to 0 over 20 steps is 0 from the tenth on, and the second half trains nothing. It counts batches of all processes as if they came one after another. Leave the
scheduler out of `prepare`, or multiply its steps by the number of processes.
"""

import multiprocessing
import os


def work(rank, size, prepared, queue):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, OMP_NUM_THREADS="1")
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 20))
    loader = torch.utils.data.DataLoader(torch.randn(20 * size, 2), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    scheduler = accelerator.prepare(scheduler) if prepared else scheduler
    rates = []
    for rows in loader:
        rates.append(optimizer.param_groups[0]["lr"])
        accelerator.backward(model(rows).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if rank == 0:
        queue.put(rates)
    accelerator.end_training()


print("a rate that falls from 1 to 0 over 20 steps, of which there are 20; in steps 1, 6, 11 and 16:")
for number, (size, prepared) in enumerate(((1, True), (2, False), (2, True))):
    PORT = str(29_600 + os.getpid() % 2_000 + number)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    started = [context.Process(target=work, args=(rank, size, prepared, queue)) for rank in range(size)]
    for process in started:
        process.start()
    rates = queue.get()
    for process in started:
        process.join()
    print(f"  {size} processes, scheduler {'prepared' if prepared else 'left out'}: " + ", ".join(f"{rates[step]:.2f}" for step in (0, 5, 10, 15)))
    times = size if prepared else 1
    assert len(rates) == 20 and all(abs(rate - max(0, 1 - times * step / 20)) < 1e-6 for step, rate in enumerate(rates))
PYTHON
