"""Steps of DeepSpeed's engine on toys: two CPU processes over gloo, with the configuration that
`export --to deepspeed` or `--to llama-factory` writes but for the size of its buckets, which is a
toy's.

The profiler does not know what is freed in a thread of gloo; the loss and the optimizer, where the
peaks are, wait for none.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from accuracy.grid.stacks import Toy, batch_of, bytes_of, model_of, peak_of, planned

#: Elements of a bucket: of real runs a share of the largest weights as large.
BUCKET = 16_384


def of_deepspeed(target: str, toys: Sequence[Toy], layouts: Sequence[str]) -> dict[tuple[str, Toy], int]:
    """Of the rank that has most, by layout and toy; each process measures all of them."""
    found: dict[tuple[str, Toy], int] = {}
    for ranks in (1, 2):
        some = [(way, toy) for way in layouts if (way == "single") == (ranks == 1) for toy in toys]
        if not some:
            continue
        with tempfile.TemporaryDirectory() as name:
            start_processes(_rank, args=(target, some, ranks, name), nprocs=ranks, start_method="spawn")
            every = [json.loads(path.read_text()) for path in Path(name).glob("rank-*")]
        found |= {one: max(peaks[at] for peaks in every) for at, one in enumerate(some)}
    return found


def config_of(target: str, toy: Toy, layout: str) -> dict[str, Any]:
    """As it is exported; what is left to Trainer is filled in as it does."""
    from shardwise.interop.chosen import Chosen
    from shardwise.interop.deepspeed import config
    from shardwise.interop.llama_factory import deepspeed_config

    chosen = Chosen.of(planned(toy, target, layout), path="toy")
    made = config(chosen) if target == "deepspeed" else {**deepspeed_config(chosen), **_FILLED}
    if target != "deepspeed":
        made |= {"train_micro_batch_size_per_gpu": toy[3], "train_batch_size": toy[3] * chosen.layout.world_size}
    if "reduce_bucket_size" in made["zero_optimization"]:
        made["zero_optimization"] |= {"reduce_bucket_size": BUCKET, "stage3_prefetch_bucket_size": BUCKET}
    return made


#: Of `auto`, by the Trainer under `bf16: true`.
_FILLED = {"gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True}}


def _rank(rank: int, target: str, some: Sequence[tuple[str, Toy]], ranks: int, folder: str) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {**place, "WORLD_SIZE": str(ranks), "DS_ACCELERATOR": "cpu"}
    torch.set_num_threads(1)
    import deepspeed

    # Of messages within a machine, which it would compile a program for.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend="gloo")
    peaks = [_peak(deepspeed, target, toy, layout) for layout, toy in some]
    (Path(folder) / f"rank-{rank}").write_text(json.dumps(peaks))
    torch.distributed.barrier()


def _peak(deepspeed: Any, target: str, toy: Toy, layout: str) -> int:
    gc.collect()
    before = _held()
    model, batch = model_of(toy), batch_of(toy)
    # Trainer hands over its own optimizer.
    own = None if target == "deepspeed" else torch.optim.AdamW(model.parameters(), fused=True)
    made = config_of(target, toy, layout)
    engine, *_ = deepspeed.initialize(model=model, config=made, optimizer=own, model_parameters=model.parameters())

    def step() -> None:
        engine.backward(engine(**batch).loss)
        engine.step()

    step()
    peak = peak_of(step, _held) - before
    engine.destroy()
    return peak


def _held() -> int:
    """Whatever floating-point tensors there are: the engine keeps them under many names."""
    gc.collect()
    return bytes_of(one for one in gc.get_objects() if type(one) in _KINDS and one.is_floating_point())


_KINDS = (torch.Tensor, torch.nn.Parameter)
