"""The reference: the model with adapters off, or log-probabilities known before."""

import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from shardwise.data.micro_batches import FILLER, Batcher, MicroBatch
from shardwise.parallel.mesh import World

Logs = npt.NDArray[np.float32]
#: Makes log-probabilities [rows] of micro-batches; None on ranks whose stage makes none.
LogProbsOf = Callable[[Sequence[MicroBatch]], list[torch.Tensor | None]]


@contextmanager
def as_reference(modules: Iterable[nn.Module], *, adapters_off: bool = False) -> Generator[None]:
    """Inside, modules drop nothing out, and with `adapters_off` are the model that adapters were
    added to. PEFT's own switch would freeze adapters, and leave them so."""
    roots = list(modules)
    were = [root.training for root in roots]
    layers: list[Any] = [one for root in roots for one in root.modules() if hasattr(one, "_disable_adapters")]
    try:
        for root, was in zip(roots, were, strict=True):
            if was:
                root.train(False)
        for layer in layers if adapters_off else ():
            vars(layer)["_disable_adapters"] = True
        yield
    finally:
        for layer in layers if adapters_off else ():
            vars(layer)["_disable_adapters"] = False
        for root, was in zip(roots, were, strict=True):
            if was:
                root.train(True)


def log_probabilities(
    batcher: Batcher, ids: npt.NDArray[np.int64], log_probs_of: LogProbsOf, *, world: World, passed: Callable[[], None]
) -> Logs:
    """Of some samples' rows, [samples, sides], alike on all ranks; `passed`: after a forward."""
    data, per_forward = batcher.data, batcher.samples_per_forward
    place = np.full(len(data), -1, np.int64)
    place[ids] = np.arange(len(ids))
    found = torch.zeros(len(ids), data.sides, dtype=torch.float32, device=world.device)
    ordered = ids[np.argsort(-data.lengths[ids].astype(np.int64), kind="stable")]
    for start in range(0, len(ids), per_forward):
        some = ordered[start : start + per_forward]
        batch = batcher.split(some, num_micro_batches=1, step=0, epoch=0.0)
        for micro, logs in zip(batch.micro_batches, log_probs_of(batch.micro_batches), strict=True):
            own = [(at, place[sample]) for at, sample in enumerate(micro.sample_ids) if sample != FILLER]
            if logs is not None and own:
                at, to = zip(*own, strict=True)
                found[list(to)] = logs.view(-1, data.sides)[list(at)]
        passed()
    if not counts_once(world):
        found.zero_()
    dist.all_reduce(found)
    return found.cpu().numpy()


def counts_once(world: World) -> bool:
    """Whether this rank is counted, of those that hold the same rows' log-probabilities."""
    at = world.layout.coordinates(world.rank)
    return at.tp == 0 and at.cp == 0


def file_of(folder: Path, *, model: Mapping[str, str], fingerprint: str, precision: str) -> Path:
    """Where log-probabilities are kept: by model, rows and type, beside the data."""
    described = {"model": dict(model), "data": fingerprint, "precision": precision}
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    return folder / f"reference-{key}.bin"


def read_logs(path: Path, *, shape: tuple[int, int], world: World) -> Logs:
    """What rank 0 finds, the same on every rank; NaN for what is not known."""
    found = torch.full(shape, torch.nan, dtype=torch.float32)
    if world.is_first and path.is_file() and path.stat().st_size == found.numel() * 4:
        found = torch.from_numpy(np.fromfile(path, "<f4").reshape(shape))
    dist.broadcast(found, 0, group=world.control)
    return found.numpy()


def write_logs(path: Path, logs: Logs) -> None:
    """Writes them, whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}")
    logs.astype("<f4").tofile(partial)
    partial.rename(path)
