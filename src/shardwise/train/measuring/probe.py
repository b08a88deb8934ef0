"""Rates of this machine, with as many ranks at work at once as train on it.

`measure` starts the ranks and takes the means of what they measured. What a rank has alone on a
machine is more than it has beside its peers, which share memory, links and processors with it.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import scaled_dot_product_attention

from shardwise.catalog.rates import SAMPLE, SAMPLE_LENGTH, SAMPLE_ROWS, WRITTEN
from shardwise.parallel.fsdp import apply_sharding
from shardwise.parallel.mesh import all_gather_single, own_device, reduce_scatter_single
from shardwise.parallel.optimizer.zero1 import exchange_rows
from shardwise.spec.layout.axes import Layout
from shardwise.train.precision import type_name

#: (m, k, n) of products: a large one, those of a small model, and of an adapter of rank 16.
SHAPES = {
    "cpu": ((1024, 1024, 1024), (512, 256, 256), (1024, 1024, 16)),
    "cuda": ((8192, 4096, 4096), (2048, 1024, 1024), (8192, 4096, 16)),
}
TYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Tokens of a sequence under attention, of 8 heads of 64.
LENGTHS = {"cpu": (128, 256, 1024), "cuda": (1024, 4096)}
#: Seconds that each figure is measured for, and steps of the sample model in each of some turns;
#: and repetitions at least; and steps that ranks take together.
SECONDS, SAMPLE_SECONDS, TURNS, TIMES, STEPS = 0.4, 1.0, 3, 3, 15
#: Bytes of a copy; of messages.
COPIED, MESSAGES = {"cpu": 2**25, "cuda": 2**28}, (2**6, 2**18, 2**22, 2**24, 2**26)
#: Shape of the factors of a product between two messages, which takes a core some milliseconds.
BETWEEN = (512, 512)
#: Small operators of a chain, which take the host's time and little else.
OPERATORS = 200


def measure(*, ranks: int, folder: str) -> dict[str, Any]:
    """The rates of `ranks` at work together; `folder` is empty, and its disk is measured."""
    spawn(_measure, (ranks, folder), nprocs=ranks)
    return _mean([json.loads((Path(folder) / f"rank_{rank}.json").read_text()) for rank in range(ranks)])


def _mean(found: list[Any]) -> Any:
    if isinstance(found[0], dict):
        return {key: _mean([one[key] for one in found]) for key in found[0]}
    return statistics.fmean(found)


def _measure(rank: int, ranks: int, folder: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = own_device()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    before = _share_of_cores(device)
    talks = _talks(device) if ranks > 1 else {}
    rates = {
        "product_flops": {type_name(dtype): _products(device, dtype) for dtype in TYPES},
        "attention_seconds": {type_name(dtype): _attention(device, dtype) for dtype in TYPES},
        "memory_bytes_per_second": _copies(device),
        "operator_seconds": _operators(device),
        "message_seconds": {name: _messages(device, talk) for name, talk in talks.items()},
        "disk_bytes_per_second": _disk(Path(folder) / f"file_{rank}"),
        "host_to_device_bytes_per_second": _host_copies(device) if on_gpu else 0.0,
        "sample": {} if on_gpu else _samples(device, ranks),
        "share_of_cores": min(before, _share_of_cores(device)),
    }
    (Path(folder) / f"rank_{rank}.json").write_text(json.dumps(rates))
    dist.destroy_process_group()


def _seconds(device: torch.device, work: Callable[[], Any], *, lasting: float = SECONDS, times: int = TIMES) -> float:
    """The median of some repetitions, which all ranks begin together."""
    work()
    _wait(device)
    dist.barrier()
    found, began = list[float](), time.perf_counter()
    while time.perf_counter() - began < lasting or len(found) < times:
        found.append(_taken(device, work))
    return statistics.median(found)


def _taken(device: torch.device, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _share_of_cores(device: torch.device) -> float:
    """Seconds of processors that products had, of those that they were there for; 1 on a GPU."""
    if device.type == "cuda":
        return 1.0
    factor = torch.ones(1024, 1024)
    dist.barrier()
    busy, began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        torch.mm(factor, factor)
    return (time.process_time() - busy) / (time.perf_counter() - began) / torch.get_num_threads()


def _products(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """FLOP/s by `m x k x n`."""
    found: dict[str, float] = {}
    for m, k, n in SHAPES[device.type]:
        factors = (torch.ones(shape, dtype=dtype, device=device) for shape in ((m, k), (k, n)))
        found[f"{m}x{k}x{n}"] = 2.0 * m * k * n / _seconds(device, partial(torch.mm, *factors))
    return found


def _attention(device: torch.device, dtype: torch.dtype) -> dict[str, dict[str, float]]:
    """Seconds of causal attention, by the FLOPs of its two products: half of the scores count."""
    forward, backward = dict[str, float](), dict[str, float]()
    heads, width = 8, 64
    for length in LENGTHS[device.type]:
        query = torch.ones(1, heads, length, width, dtype=dtype, device=device, requires_grad=True)
        attend = partial(scaled_dot_product_attention, query, query, query, is_causal=True)
        result, flops = attend(), str(2 * heads * length**2 * width)
        forward[flops] = _seconds(device, attend, lasting=SECONDS / 4)
        learn = partial(result.backward, result.detach(), retain_graph=True)
        backward[flops] = _seconds(device, learn, lasting=SECONDS / 4)
    return {"forward": forward, "backward": backward}


def _copies(device: torch.device) -> float:
    source = torch.ones(COPIED[device.type] // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * COPIED[device.type] / _seconds(device, lambda: target.copy_(source))


def _operators(device: torch.device) -> float:
    """Host seconds for one small operator, forward and backward, through autograd and Python."""
    start = torch.ones(4, device=device, requires_grad=True)

    def chain() -> None:
        value = start
        for _ in range(OPERATORS):
            value = value * 1.0
        value.sum().backward()

    return _seconds(device, chain) / (2 * OPERATORS)


def _samples(device: torch.device, ranks: int) -> dict[str, float]:
    """Seconds of a step of the sample model: each rank for itself, in either precision; the first
    on all cores, while the others wait; and all together. Those that are compared are taken in
    turns: a machine's speed varies."""
    ways = {"fp32": lambda: _sample_step(device), "mixed": lambda: _sample_step(device, casts=True)}
    if ranks > 1:
        ways["alone"] = lambda: ranks * _alone(device, ranks)
    turns = [{name: way() for name, way in ways.items()} for _ in range(TURNS)]
    found = {name: statistics.median(turn[name] for turn in turns) for name in ways}
    return found | ({"sharded": _sample_step(device, shards=ranks)} if ranks > 1 else {})


def _alone(device: torch.device, ranks: int) -> float:
    """On the first rank; no seconds on the others."""
    threads, seconds = torch.get_num_threads(), 0.0
    if dist.get_rank() == 0:
        torch.set_num_threads(threads * ranks)
        seconds = _sample_step(device)  # has a barrier of its own
        torch.set_num_threads(threads)
    else:
        dist.barrier()
    dist.barrier()
    return seconds


def _sample_step(device: torch.device, *, shards: int = 1, casts: bool = False) -> float:
    """Seconds of a step of the sample model, which a rank trains for itself; or all together with
    one row each, over so many shards. `casts`: in bfloat16, as `mixed` does."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SAMPLE), dtype=torch.float32)
    lasting, times, rows = SAMPLE_SECONDS, TIMES, SAMPLE_ROWS
    if shards > 1:
        lasting, times, rows = 0.0, STEPS, 1
        mesh = init_device_mesh(device.type, (shards,))
        apply_sharding(
            model,
            blocks=model.model.layers,
            before=[model.model.embed_tokens],
            behind=[model.model.norm, model.lm_head],
            mesh=mesh,
            layout=Layout(dp_shard=shards),
            compute_dtype=torch.float32,
        )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    row = torch.arange(SAMPLE_LENGTH).unsqueeze(0)

    def step() -> None:
        for _ in range(rows):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=casts):
                loss = model(input_ids=row, labels=row, use_cache=False).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return _seconds(device, step, lasting=lasting, times=times)


def _messages(device: torch.device, talk: Callable[[torch.Tensor], Any]) -> dict[str, float]:
    """Seconds of a collective by its bytes, with the wait for late ranks; as many on each rank."""
    found: dict[str, float] = {}
    ranks = dist.get_world_size()
    factor = torch.ones(BETWEEN, device=device)
    for size in MESSAGES:
        tensor, taken = torch.ones(ranks * -(-size // (4 * ranks)), device=device), list[float]()
        talk(tensor)
        for _ in range(50 if size < 2**20 else 15 if size < 2**26 else 5):
            torch.mm(factor, factor)
            _wait(device)
            taken.append(_taken(device, partial(talk, tensor)))
        mean = torch.tensor(statistics.fmean(taken) / ranks, device=device)
        dist.all_reduce(mean)
        found[str(size)] = float(mean)
    return found


def _send(tensor: torch.Tensor) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank % 2:
        dist.recv(tensor, rank - 1)
    elif rank + 1 < size:
        dist.send(tensor, rank + 1)


def _talks(device: torch.device) -> dict[str, Callable[[torch.Tensor], Any]]:
    """What is measured of messages; gloo's gather and reduce are not halves of its all-reduce."""
    ranks = dist.get_world_size()
    axis = init_device_mesh(device.type, (ranks,))
    return {
        "all_reduce": dist.all_reduce,
        "gather": lambda whole: all_gather_single(whole, whole.new_empty(len(whole) // ranks)),
        "scatter": lambda whole: reduce_scatter_single(whole.new_empty(len(whole) // ranks), whole),
        "exchange": lambda whole: exchange_rows([whole], axis=axis),
        "message": _send,
    }


def _disk(path: Path) -> float:
    data, start = os.urandom(2**20) * (WRITTEN // 2**20), time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    return WRITTEN / (time.perf_counter() - start)


def _host_copies(device: torch.device) -> float:
    source = torch.ones(2**26, dtype=torch.uint8).pin_memory()
    return source.nbytes / _seconds(device, lambda: source.to(device, non_blocking=True))
