"""The process group and the device mesh: which rank stands where on the axes of a layout.

The mesh has all axes of `spec.layout.AXES` in their order, those of degree 1 too, so that nothing
that uses it asks which axes exist. spec/layout/axes.py says which rank has which coordinates; a
test compares it with this mesh.
"""

import os
import socket
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from shardwise.errors import InputError
from shardwise.parallel.network import check_named, choose_interface, met
from shardwise.spec.begin import LISTENING, NOT_HERE, left_over
from shardwise.spec.layout.axes import AXES, EXPERT_AXES, Layout

#: Long enough for rank 0 to write and verify a large model while the others wait. A run that hangs
#: is ended long before by each rank's watch, which knows a step from a save and says who is waited
#: for.
TIMEOUT = timedelta(minutes=60)

#: torch 2.13 has new names for them, and warns of those that earlier versions know.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, kw_only=True)
class Pipes:
    """Groups for messages between stages. Each direction has a group of its own, and so has the way
    from the last rank round to the first: two ranks then never wait for each other's message of
    another kind. `ranks`: the pipeline's, by coordinate; `groups`: by (forward, round); `ends`: the
    first and the last of the ranks, None on the others."""

    ranks: list[int]
    groups: dict[tuple[bool, bool], dist.ProcessGroup]
    ends: dist.ProcessGroup | None

    def rank_of(self, stage: int) -> int:
        """The rank that holds a stage."""
        return self.ranks[stage % len(self.ranks)]

    def group(self, *, forward: bool, stage: int) -> dist.ProcessGroup:
        """The group for what a stage sends to the next one (forward), or to the one before."""
        return self.groups[forward, (stage + 1 if forward else stage) % len(self.ranks) == 0]


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place. `mesh`: all axes of the layout; `data_group`: ranks that see different
    samples, or parts of them, and hold the same slice of the model; `replicas`, `shards`: of these,
    the axis along which what is sharded has copies, and the one along which it is cut;
    `expert_mesh`: the same ranks by `EXPERT_AXES`, None where experts are not dealt; `row_group`:
    those with parts of the same rows, None where rows are whole; `pipes`: how stages reach their
    neighbours; `control`: all ranks, for small messages on the CPU."""

    layout: Layout
    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    data_group: dist.ProcessGroup
    replicas: DeviceMesh
    shards: DeviceMesh
    control: dist.ProcessGroup
    pipes: Pipes | None = None
    row_group: dist.ProcessGroup | None = None
    expert_mesh: DeviceMesh | None = None

    def counted(self, loss: torch.Tensor) -> torch.Tensor:
        """What this rank adds to the world's sum of losses: that of its part of a micro-batch on
        one rank, and 0 on its peers, which see the same one, were it infinite."""
        return loss if self.layout.coordinates(self.rank).tp == 0 else torch.zeros_like(loss)

    @property
    def data_rank(self) -> int:
        """Which share of each global batch this rank sees."""
        return self.layout.data_rank(self.rank)

    @property
    def stream(self) -> int:
        """This rank's random stream: alike for slices of the same blocks that see equal tokens."""
        return self.rank // self.layout.tp

    @property
    def is_first_of_row(self) -> bool:
        """Whether this rank is counted, of those of a stage that see the same rows or parts."""
        return self.rank % self.layout.ranks_per_row == 0

    @property
    def is_first(self) -> bool:
        """Rank 0, which writes what is written once."""
        return self.rank == 0


def join_world(layout: Layout) -> World:
    """Initialises torch.distributed from the launcher's environment, lays the mesh. Raises
    InputError: not the layout's number of processes, or nothing says where to meet."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size != layout.world_size:
        remedy = f"; {left_over()}" if size > 1 and not dist.is_initialized() else ""
        needed = f"the layout {layout.strategy} needs {layout.world_size}"
        raise InputError(f"{size} processes were started; {needed}{remedy}")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if size > 1 and name not in os.environ]
    if missing and not dist.is_initialized():
        raise InputError(
            f"WORLD_SIZE is {size}, and {' and '.join(missing)} {'are' if missing[1:] else 'is'} not set; {left_over()}"
        )
    device = own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _init_process_group(device, rank=rank, size=size)
    return lay_world(layout, rank=rank, device=device)


def lay_world(layout: Layout, *, rank: int, device: torch.device, control: str = "gloo") -> World:
    """Lays the mesh over an existing process group; `control` is the backend of small messages."""
    mesh = init_device_mesh(device.type, layout.degrees, mesh_dim_names=AXES)
    data = mesh["dp_replicate", "dp_shard", "cp"]
    both = layout.copied_over, layout.shards_over
    replicas, shards = (mesh[axes]._flatten("_".join(axes)) if axes[1:] else mesh[axes] for axes in both)
    experts = None
    if layout.ep > 1:
        experts = init_device_mesh(device.type, layout.expert_degrees, mesh_dim_names=EXPERT_AXES)
    data_group = data._flatten("dp").get_group()
    of_experts = experts.get_all_groups() if experts is not None else ()
    for group in (*mesh.get_all_groups(), *of_experts, data_group, replicas.get_group(), shards.get_group()):
        _set_pg_timeout(TIMEOUT, group)  # a mesh gives groups smaller than the world torch's own 10 or 30 minutes
    return World(
        layout=layout,
        rank=rank,
        size=layout.world_size,
        device=device,
        mesh=mesh,
        data_group=data_group,
        replicas=replicas,
        shards=shards,
        expert_mesh=experts,
        row_group=mesh["cp"].get_group() if layout.splits_rows else None,
        control=cast(dist.ProcessGroup, dist.new_group(backend=control, timeout=TIMEOUT)),
        pipes=_lay_pipes(layout, mesh, rank=rank, device=device) if layout.pp > 1 else None,
    )


def side_by_side(outer: DeviceMesh, inner: DeviceMesh) -> DeviceMesh:
    """A mesh of two axes, each of them of the same mesh of all ranks."""
    return DeviceMesh._concatenate([outer, inner])


def own_device() -> torch.device:
    """This rank's GPU, or the processor where there is none. Raises as `device_index`."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", device_index(int(os.environ.get("LOCAL_RANK", "0")), visible=torch.cuda.device_count()))


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies a host tensor; a GPU's copy is asynchronous, which takes page-locked memory."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def device_index(local_rank: int, *, visible: int) -> int:
    """Which of the visible GPUs is a rank's: the one of its number on this machine; where each
    process sees one GPU (`srun --gpus-per-task=1`), that one. Raises InputError: neither is so."""
    if local_rank >= visible != 1:
        raise InputError(
            f"LOCAL_RANK is {local_rank}, and {visible} GPUs are visible to this process; start one process for each "
            "GPU, or let each process see one GPU by CUDA_VISIBLE_DEVICES"
        )
    return min(local_rank, visible - 1)


def _lay_pipes(layout: Layout, mesh: DeviceMesh, *, rank: int, device: torch.device) -> Pipes:
    """Groups of all pipelines, made by every rank in the same order; this rank's own are kept."""
    ways = [(forward, around) for forward in (True, False) for around in (False, True)]
    ways = [way for way in ways if layout.num_stages > layout.pp or not way[1]]
    every = [
        Pipes(ranks=ranks, groups={way: _new_group(ranks) for way in ways}, ends=_new_group([ranks[0], ranks[-1]]))
        for ranks in mesh.mesh.movedim(AXES.index("pp"), -1).reshape(-1, layout.pp).tolist()
    ]
    mine = next(pipes for pipes in every if rank in pipes.ranks)
    _meet_neighbours(mine, rank=rank, device=device)
    return mine if rank in (mine.ranks[0], mine.ranks[-1]) else replace(mine, ends=None)


def _meet_neighbours(pipes: Pipes, *, rank: int, device: torch.device) -> None:
    """Passes one element along each way, one rank after the other: NCCL makes two ranks'
    communicator at their first message, and holds up both; in a schedule's order a circle."""
    token, count, at = torch.zeros(1, device=device), len(pipes.ranks), pipes.ranks.index(rank)
    for (forward, around), group in sorted(pipes.groups.items()):
        step = 1 if forward else -1
        first, last = (0, count - 1) if forward else (count - 1, 0)
        receives, sends = (at == first, at == last) if around else (at != first, at != last)
        if receives:
            dist.recv(token, pipes.ranks[(at - step) % count], group=group)
        if sends:
            dist.send(token, pipes.ranks[(at + step) % count], group=group)


def _new_group(ranks: list[int]) -> dist.ProcessGroup:
    return cast(dist.ProcessGroup, dist.new_group(ranks, timeout=TIMEOUT))


def _init_process_group(device: torch.device, *, rank: int, size: int) -> None:
    # Without `device_id`: with it torch splits groups off the world's communicator, and the
    # messages of a group share one stream, where those of different neighbours wait for each other.
    backend = "cuda:nccl,cpu:gloo" if device.type == "cuda" else "gloo"
    check_named(gpus=device.type == "cuda")
    if size == 1 and "MASTER_ADDR" not in os.environ:
        # One process needs no rendezvous and opens no port.
        store: Store = HashStore()
    else:
        if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < size and not _is_one_machine():
            choose_interface(os.environ["MASTER_ADDR"])
        store = met(partial(_open_store, rank=rank, size=size), rank=rank, size=size, timeout=TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def _is_one_machine() -> bool:
    """Whether all ranks meet on this machine and no one else (torchrun's agent) holds the store."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True"
    return os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost", "::1") and not agent


def _open_store(timeout: timedelta, *, rank: int, size: int) -> Store:
    """A store that listens where our launcher does, or on loopback; else that of torchrun's agent,
    or torch's own, which listens everywhere."""
    if LISTENING not in os.environ and not _is_one_machine():
        return next(rendezvous("env://", rank, size, timeout=timeout))[0]
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listening = None
    if rank == 0:
        # Our launcher hands over what listens there already.
        listening = int(os.environ.pop(LISTENING, NOT_HERE))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = listening if listening != NOT_HERE else socket.create_server((host, port), family=family).detach()
    return TCPStore(host, port, size, is_master=rank == 0, timeout=timeout, master_listen_fd=listening)
