"""How certain a memory forecast is, what the allocator reserves, and what is outside it."""

from collections.abc import Mapping
from functools import cache

from shardwise.spec.cluster import Cluster, Gpu
from shardwise.spec.layout.axes import AXES, Layout
from shardwise.units import MIB

#: Device memory of one NCCL communicator: channels and their buffers, 0.5 to 0.7 GB on eight GPUs.
COMMUNICATOR_BYTES = 600 * MIB

#: cuBLAS's workspace of each thread that launches products (forward and backward have one each), by
#: how the GPU's name begins: 32 MiB on Hopper and later, 8 on others (PyTorch, `CUDAHooks`); and
#: cuDNN's. An H100 had 0.07 GiB in all.
_WORKSPACES = (("H", 32), ("GH", 32), ("B", 32), ("GB", 32), ("", 8))
_THREADS, _CUDNN_BYTES = 2, 8 * MIB

#: How far off each part may be, as a share of it: the half-width of the interval. Persistent bytes
#: are counted, not estimated; saved activations are counted by operator and checked on the CPU; the
#: rest are models of implementations that have not been measured on GPUs by this version, and say
#: so by their width.
DOUBT = {
    "weights": 0.0,
    "gradients": 0.01,
    "optimizer": 0.0,
    "activations": 0.08,
    "logits": 0.08,
    "communication": 0.15,
    "temporary": 0.50,
    "context": 0.25,
}

#: Reserved over allocated by PyTorch's caching allocator in steady state, of what comes and goes:
#: 512-byte rounding is nothing beside segments that fragment, more so where sharded weights come
#: and go with every block. Set, to one digit, at the medians of three published sources of reserved
#: peaks (torchtitan and fsdp_qlora, sharded; Qwen's table, one GPU), see docs/accuracy.md. What
#: stays is allocated once, so that only segments it does not fill are lost.
_FRAGMENTATION, _FRAGMENTATION_SHARDED, _UNFILLED = 0.10, 0.15, 0.01
_SEGMENT_BYTES = 20 * MIB
_STAYING = frozenset({"weights", "gradients", "optimizer"})


def context_bytes(cluster: Cluster, layout: Layout) -> int:
    """The driver's context, and a communicator for each axis with several ranks, and the world. A
    pipeline's stands for its pairs', as no collective uses the axis: at most four, and the two
    ends' (about 100 MB each by field reports, not measured; see a run's `device_used_bytes`)."""
    gpu = cluster.gpu
    if gpu.kind == "cpu":
        return gpu.context_bytes
    axes = sum(getattr(layout, axis) > 1 for axis in AXES)
    return gpu.context_bytes + (axes + (axes > 1)) * COMMUNICATOR_BYTES


def workspace_bytes(gpu: Gpu) -> int:
    """What libraries take of the allocator's memory at their first product, and keep."""
    if gpu.kind == "cpu":
        return 0
    return _THREADS * next(size for start, size in _WORKSPACES if gpu.name.startswith(start)) * MIB + _CUDNN_BYTES


@cache
def _doubts_and_shares(sharded: bool) -> dict[str, tuple[float, float]]:
    """Of each part its doubt, and bytes held by the allocator for each byte that is alive."""
    passing = 1 + (_FRAGMENTATION_SHARDED if sharded else _FRAGMENTATION)
    shares = {part: 1 + _UNFILLED if part in _STAYING else 1.0 if part == "context" else passing for part in DOUBT}
    return {part: (DOUBT[part], shares[part]) for part in DOUBT}


def ends(alive: Mapping[str, float], *, context: int, sharded: bool) -> tuple[int, float, float]:
    """What a rank has alive, with the context; the doubt of it, which is independent between parts,
    so that squares add; and what the allocator then reserves."""
    shares = _doubts_and_shares(sharded)
    doubt, share = shares["context"]
    # CPU processes have neither a context nor segments, of which one is not full.
    total, reserved = context, context * share + (_SEGMENT_BYTES if context else 0)
    squares = (context * doubt) ** 2
    for part, exact in alive.items():
        count = round(exact)
        doubt, share = shares[part]
        total += count
        squares += (count * doubt) ** 2
        reserved += count * share
    return total, squares**0.5, reserved
