#!/usr/bin/env bash
# The first rank's state of Muon has the momentum of its share of the weights; after a resume the others begin anew.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check muon-optimizer==0.1.0 torch==2.13.0 numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""muon-optimizer 0.1.0, of the method's author: on several ranks each steps its share of the matrices and sends them to all. Weights are whole on every rank, and momentum is on the
rank that steps. A checkpoint that the first rank writes, which is right for AdamW with replicated weights, loses it for all others: `load_state_dict` takes it without a word, and
training goes on along another path. Save and load the state of each rank, on as many ranks.
"""

import copy
import multiprocessing

import torch
import torch.distributed as dist
from muon import Muon


def built(weights):
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    return parameters, Muon(parameters, lr=0.02, momentum=0.95)


def train(parameters, optimizer, first, last):
    for step in range(first, last):
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(100 * step + number))
        optimizer.step()


def work(rank):
    dist.init_process_group("gloo", store=dist.FileStore("meet", 2), rank=rank, world_size=2)
    torch.manual_seed(0)
    parameters, optimizer = built([torch.randn(8, 8) for _ in range(4)])
    train(parameters, optimizer, 0, 10)
    weights = [parameter.detach().clone() for parameter in parameters]
    own = copy.deepcopy(optimizer.state_dict())
    states = [own]
    dist.broadcast_object_list(states, src=0)
    train(parameters, optimizer, 10, 15)
    apart = {}
    for name, state in (("own", own), ("first", states[0])):
        resumed, optimizer = built(weights)
        optimizer.load_state_dict(copy.deepcopy(state))
        train(resumed, optimizer, 10, 15)
        apart[name] = [(a - b).abs().max().item() for a, b in zip(parameters, resumed, strict=True)]
    if rank == 0:
        print(f"muon-optimizer 0.1.0, two ranks, four matrices: the first rank's state has momentum of {len(own['state'])}")
        print("  five steps after a resume, how far each is from the run that went on:")
        for name, found in apart.items():
            print(f"    with {name} state: " + ", ".join(f"{far:.3g}" for far in found))
    assert len(own["state"]) == 2 and max(apart["own"]) == 0
    assert apart["first"][0] == apart["first"][2] == 0 and min(apart["first"][1::2]) > 0.01
    dist.barrier()
    dist.destroy_process_group()


started = [multiprocessing.get_context("fork").Process(target=work, args=(rank,)) for rank in (0, 1)]
for process in started:
    process.start()
for process in started:
    process.join()
raise SystemExit(max(abs(process.exitcode) for process in started))
PYTHON
