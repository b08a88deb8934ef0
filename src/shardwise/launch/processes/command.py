"""The command lines, logs and environment that workers start with."""

import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from shardwise.errors import InputError
from shardwise.launch.processes.parent_death import end_with_parent
from shardwise.spec.cluster import DeviceKind
from shardwise.spec.run import RunDirectory

#: What ranks run, as `python -m WORKER RUN_DIR`.
WORKER = "shardwise.programs.worker"

#: Of a group that something else started. One process alone needs no address.
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")

LOOPBACK = "127.0.0.1"


def require_torch() -> None:
    """Looks for torch without importing it. Raises InputError: it is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("training needs torch, which is not installed; run: pip install 'shardwise[train]'")


#: So that a rank's log has what the rank says, at once and alone: libkineto reports each use of the
#: profiler, which measures memory on processors, at a level that only a number above all of its own
#: keeps down.
QUIET = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "99"}


def worker_environment(
    base: Mapping[str, str], *, processes: int, kind: DeviceKind, alone: bool = True
) -> dict[str, str]:
    """What workers find in their environment, beside what the user set. `alone`: one machine."""
    defaults = {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes)),
        **QUIET,
        **(loopback_only() if alone else {}),
        **allocator_settings(base, kind),
    }
    users = {name: value for name, value in base.items() if name not in ADDRESS}
    return {**defaults, **users, **visible_devices(kind)}


def rank_environment(
    rank: int, *, processes: int, port: int | None, host: str = LOOPBACK, nodes: int = 1
) -> dict[str, str]:
    """A rank's place in a run, in torchrun's words. `processes`: of each machine; `port`: of
    `host`, where rank 0 listens; None where there is one process."""
    local, size = rank % processes, nodes * processes
    place = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": processes}
    address = {} if port is None else dict(zip(ADDRESS, (host, str(port)), strict=True))
    return {**{name: str(value) for name, value in place.items()}, **address}


def allocator_settings(base: Mapping[str, str], kind: DeviceKind) -> dict[str, str]:
    """Sequences, and so tensor sizes, vary by step: segments that grow leave fewer gaps. Nothing
    where the user has settings of the allocator, under either of torch's names for them."""
    stated = "PYTORCH_ALLOC_CONF" in base or "PYTORCH_CUDA_ALLOC_CONF" in base
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if kind == "cuda" and not stated else {}


def visible_devices(kind: DeviceKind) -> dict[str, str]:
    """`hardware: cpu:2` means processors also on a machine that has GPUs."""
    return {"CUDA_VISIBLE_DEVICES": ""} if kind == "cpu" else {}


def loopback_only() -> dict[str, str]:
    """Ranks on one machine have no business on its network."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return {"GLOO_SOCKET_IFNAME": names[0], "NCCL_SOCKET_IFNAME": names[0]} if names else {}


#: A line of a rank's log behind which a start of it begins; what is above was said by earlier ones.
STARTED = "===== started ====="


def worker_argv(run: RunDirectory, *, module: str | None = None) -> list[str]:
    """The command line of one worker."""
    return [sys.executable, "-m", module or WORKER, str(run.root)]


def open_log(run: RunDirectory, rank: int) -> int:
    """The descriptor of a rank's log, to which it has added where this start begins."""
    log = os.open(run.rank_log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    with suppress(OSError):  # a full disk stops nothing here
        os.write(log, f"{STARTED}\n".encode())
    return log


def become_rank(run: RunDirectory, module: str) -> NoReturn:
    """Redirects and becomes the worker (`programs/rank.py`)."""
    rank = int(os.environ["RANK"])
    # torchrun may end without its workers: the kernel's out-of-memory killer chooses as it likes.
    end_with_parent(signal.SIGKILL)
    # A restarted rank begins anew: what it failed of before is not what it fails of now.
    run.rank_failure(rank).unlink(missing_ok=True)
    log = open_log(run, rank)
    os.dup2(log, 1)
    os.dup2(log, 2)
    argv = worker_argv(run, module=module)
    os.execv(argv[0], argv)  # noqa: S606 - an argument list, and no shell
