"""Rates of this machine, with as many ranks at work at once as train on it.

`python -m shardwise.train.measuring.probe JSON` starts the ranks and prints the means of what they measured. What a
rank has alone on a machine is more than it has beside its peers, which share memory, links and processors with it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import scaled_dot_product_attention

from shardwise.catalog.rates import SAMPLE, SAMPLE_LENGTH, SAMPLE_ROWS
from shardwise.parallel.mesh import all_gather_single, own_device, reduce_scatter_single
from shardwise.train.precision import type_name

#: (m, k, n) of products: a large one, those of a small model, and of an adapter of rank 16.
SHAPES = {
    "cpu": ((1024, 1024, 1024), (512, 256, 256), (1024, 1024, 16)),
    "cuda": ((8192, 4096, 4096), (2048, 1024, 1024), (8192, 4096, 16)),
}
TYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Seconds that each figure is measured for, and steps of the sample model; and repetitions at least.
SECONDS, SAMPLE_SECONDS, TIMES = 0.4, 4.0, 3
#: Bytes of a copy; of messages; of a file.
COPIED, MESSAGES, WRITTEN = {"cpu": 2**25, "cuda": 2**28}, (2**6, 2**18, 2**22, 2**24), 2**26
#: Shape of the factors of a product between two messages, which takes a core some milliseconds.
BETWEEN = (512, 512)
#: Small operators of a chain, which take the host's time and little else.
OPERATORS = 200


def main(arguments: dict[str, Any]) -> None:
    """Prints the rates as JSON. `arguments`: `ranks`, and `folder` for a file that is written and read."""
    ranks = int(arguments["ranks"])
    with tempfile.TemporaryDirectory(dir=arguments["folder"]) as folder:
        spawn(_measure, (ranks, folder), nprocs=ranks)
        found = [json.loads((Path(folder) / f"rank_{rank}.json").read_text()) for rank in range(ranks)]
    print(json.dumps(_mean(found)))


def _mean(found: list[Any]) -> Any:
    """The mean of alike numbers, at whatever depth."""
    if isinstance(found[0], dict):
        return {key: _mean([one[key] for one in found]) for key in found[0]}
    return statistics.fmean(found)


def _measure(rank: int, ranks: int, folder: str) -> None:
    """Measures on one rank, and writes rank_N.json."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    rates = {
        "product_flops": {type_name(dtype): _products(device, dtype) for dtype in TYPES},
        "attention_flops": _attention(device),
        "memory_bytes_per_second": _copies(device),
        "operator_seconds": _operators(device),
        "message_seconds": {name: _messages(device, talk) for name, talk in TALKS.items()} if ranks > 1 else {},
        "disk_bytes_per_second": _disk(Path(folder) / f"file_{rank}"),
        "host_to_device_bytes_per_second": _host_copies(device) if device.type == "cuda" else 0.0,
        "sample_seconds": _sample_step(device) if device.type == "cpu" else 0.0,
    }
    (Path(folder) / f"rank_{rank}.json").write_text(json.dumps(rates))
    dist.destroy_process_group()


def _seconds(device: torch.device, work: Callable[[], Any], *, lasting: float = SECONDS) -> float:
    """The median of some repetitions, which all ranks begin together."""
    work()
    _wait(device)
    dist.barrier()
    found, began = [], time.perf_counter()
    while time.perf_counter() - began < lasting or len(found) < TIMES:
        start = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _products(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """FLOP/s by `m x k x n`."""
    found: dict[str, float] = {}
    for m, k, n in SHAPES[device.type]:
        left, right = (torch.ones(shape, dtype=dtype, device=device) for shape in ((m, k), (k, n)))
        found[f"{m}x{k}x{n}"] = 2.0 * m * k * n / _seconds(device, lambda a=left, b=right: torch.mm(a, b))
    return found


def _attention(device: torch.device) -> float:
    """FLOP/s of causal attention's two products in forward: half of the scores count."""
    heads, length, width = 8, 1024 if device.type == "cpu" else 4096, 64
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    query = torch.ones(1, heads, length, width, dtype=dtype, device=device)
    seconds = _seconds(device, lambda: scaled_dot_product_attention(query, query, query, is_causal=True))
    return 2.0 * heads * length**2 * width / seconds


def _copies(device: torch.device) -> float:
    """Bytes read and written a second."""
    source = torch.ones(COPIED[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * COPIED[device.type] / _seconds(device, lambda: target.copy_(source))


def _operators(device: torch.device) -> float:
    """Seconds of the host for one small operator, forward and backward, through autograd and Python."""
    start = torch.ones(4, device=device, requires_grad=True)

    def chain() -> None:
        value = start
        for _ in range(OPERATORS):
            value = value * 1.0
        value.sum().backward()

    return _seconds(device, chain) / (2 * OPERATORS)


def _sample_step(device: torch.device) -> float:
    """Seconds of a step of the sample model, which every rank trains for itself."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SAMPLE), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    row = torch.arange(SAMPLE_LENGTH).unsqueeze(0)

    def step() -> None:
        for _ in range(SAMPLE_ROWS):
            model(input_ids=row, labels=row, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return _seconds(device, step, lasting=SAMPLE_SECONDS)


def _messages(device: torch.device, talk: Callable[[torch.Tensor], Any]) -> dict[str, float]:
    """Seconds of a collective by its bytes, with the wait for ranks that come later from what they compute between.
    Every rank does the same number of them."""
    found: dict[str, float] = {}
    ranks = dist.get_world_size()
    left, right = (torch.ones(BETWEEN, device=device) for _ in range(2))
    for size in MESSAGES:
        share = -(-size // (4 * ranks))
        tensor, taken = torch.ones(ranks * share, device=device), list[float]()
        talk(tensor)
        for _ in range(15 if size > 2**20 else 50):
            torch.mm(left, right)
            _wait(device)
            start = time.perf_counter()
            talk(tensor)
            _wait(device)
            taken.append(time.perf_counter() - start)
        mean = torch.tensor(statistics.fmean(taken) / ranks, device=device)
        dist.all_reduce(mean)
        found[str(size)] = float(mean)
    return found


def _gather(whole: torch.Tensor) -> None:
    all_gather_single(whole, whole.new_empty(len(whole) // dist.get_world_size()))


def _scatter(whole: torch.Tensor) -> None:
    reduce_scatter_single(whole.new_empty(len(whole) // dist.get_world_size()), whole)


def _send(tensor: torch.Tensor) -> None:
    """From every other rank to the next one, where there is one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank % 2:
        dist.recv(tensor, rank - 1)
    elif rank + 1 < size:
        dist.send(tensor, rank + 1)


#: What is measured of messages; gloo's ways to gather and to reduce are not halves of its all-reduce.
TALKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "all_reduce": dist.all_reduce,
    "gather": _gather,
    "scatter": _scatter,
    "message": _send,
}


def _disk(path: Path) -> float:
    """Bytes a second written and synced."""
    data, start = os.urandom(2**20) * (WRITTEN // 2**20), time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return WRITTEN / (time.perf_counter() - start)


def _host_copies(device: torch.device) -> float:
    source = torch.ones(2**26, dtype=torch.uint8).pin_memory()
    return source.nbytes / _seconds(device, lambda: source.to(device, non_blocking=True))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
