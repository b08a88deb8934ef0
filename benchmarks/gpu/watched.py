"""A rank of Shardwise's with something done to it, as WATCH says; `api.train` starts it in place of the worker.

`syncs` counts how often the host waits for the device, `attention` how often attention is computed forward, both into
RUN_DIR/watched.json; `little memory` leaves the process so little of the device that it runs out while it trains.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.programs import worker
from shardwise.train.watching.watchdog import end_process

COUNTS = {"count": 0}


def count(*_: Any, **__: Any) -> None:
    """One more."""
    COUNTS["count"] += 1


def count_syncs() -> None:
    """Of the kinds that torch warns of, and calls that wait without a warning."""
    torch.cuda.set_sync_debug_mode("warn")
    warnings.simplefilter("always")
    shown = warnings.showwarning
    warnings.showwarning = lambda *said: count() if "synchronizing CUDA operation" in str(said[0]) else shown(*said)
    for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
        waits = owner.synchronize
        owner.synchronize = lambda *a, _waits=waits, **k: (count(), _waits(*a, **k))[1]


class Attention(TorchDispatchMode):
    """Counts kernels of attention, not those of its backward."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What is computed outside of the caches of selective recompute passes here."""
        name = func.__name__
        if name.startswith("_scaled_dot_product") and "backward" not in name:
            count()
        return func(*args, **kwargs or {})


def main() -> int:
    """Runs the rank."""
    watch = os.environ["WATCH"]
    if watch == "syncs":
        count_syncs()
    if watch == "little memory":
        torch.cuda.set_per_process_memory_fraction(float(os.environ["FRACTION"]))
    if watch == "attention":
        with Attention():
            status = worker.main()
    else:
        status = worker.main()
    Path(sys.argv[1], "watched.json").write_text(json.dumps(COUNTS), encoding="utf-8")
    return status


if __name__ == "__main__":
    end_process(main())
