"""The command line and the environment that workers start with."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from shardwise.errors import InputError
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import LAUNCH, RunDirectory

WORKER = "shardwise.train.worker"
PREPARATION = "shardwise.data.prepare"


def require_torch() -> None:
    """Looks for torch without importing it.

    Raises:
        InputError: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs torch, which is not installed; run: pip install 'shardwise[train]'")


def torchrun_argv(
    run: RunDirectory, *, module: str, processes: int, rendezvous: Path, max_restarts: int = 0
) -> list[str]:
    """The command line of torch elastic for one machine; options that torch 2.11 to 2.13 share.

    The agents of torch elastic exchange pickles. Over a TCP store they would do so on every network interface, whatever
    the endpoint says; over a file in a private folder, no port is open. A heartbeat a minute keeps that file small.
    """
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={processes}",
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file,keep_alive_interval=60",
        f"--rdzv-endpoint={rendezvous}",
        f"--rdzv-id={rendezvous.parent.name}",
        "--local-addr=127.0.0.1",
        f"--max-restarts={max_restarts}",
        "-m",
        "shardwise.launch.rank",
        str(run.root),
        module,
    ]


#: So that a rank's log has what the rank says, at once and alone: libkineto reports each use of the profiler, which
#: measures memory on processors, at a level that only a number above all of its own keeps down.
QUIET = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "99"}


def worker_environment(
    base: Mapping[str, str], *, launch: str, processes: int, kind: DeviceKind, cores: int | None = None
) -> dict[str, str]:
    """What workers find in their environment; what the user has set stays as it is, but for the last group."""
    cores = cores or len(os.sched_getaffinity(0))
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
        **QUIET,
        **loopback_only(),
        **allocator_settings(base, kind),
    }
    fixed = {LAUNCH: launch, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **visible_devices(kind)}
    return {**defaults, **base, **fixed}


def allocator_settings(base: Mapping[str, str], kind: DeviceKind) -> dict[str, str]:
    """Sequences, and so sizes of tensors, differ from step to step: segments that grow leave fewer gaps. Nothing where
    the user has settings of the allocator, under either of torch's names for them."""
    stated = "PYTORCH_ALLOC_CONF" in base or "PYTORCH_CUDA_ALLOC_CONF" in base
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if kind == "cuda" and not stated else {}


def visible_devices(kind: DeviceKind) -> dict[str, str]:
    """`hardware: cpu:2` means processors also on a machine that has GPUs."""
    return {"CUDA_VISIBLE_DEVICES": ""} if kind == "cpu" else {}


def loopback_only() -> dict[str, str]:
    """Ranks on one machine have no business on its network."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return {"GLOO_SOCKET_IFNAME": names[0], "NCCL_SOCKET_IFNAME": names[0]} if names else {}
