"""Offload: seconds of weights from the host, gradients to it, and of a step that is there."""

from shardwise.plan.costs.piece import RankTime, device_of
from shardwise.plan.rates import copy_seconds
from shardwise.plan.work import Unit, Work

#: What AdamW on the host walks over for each GPU. Two sockets with eight channels of DDR4-3200 have
#: 410 GB/s, of which simple loops reach about half, and eight GPUs share it. This version has not
#: measured it.
CPU_OPTIMIZER_BYTES_PER_SECOND = 20e9


def fetches_ahead(work: Work) -> bool:
    """Whether FSDP fetches beside the computation; with nothing to gather, it fetches at need."""
    return work.execution.layout.weight_shards > 1


def fetch_seconds(work: Work, unit: Unit) -> float:
    """A rank's share of a unit from the host's memory, in the types that it is stored in."""
    return over_the_bus(work, unit.stored_bytes(work.types))


def over_the_bus(work: Work, whole: float) -> float:
    """Seconds of a rank's share of so many bytes, one way."""
    if not (work.execution.parameters_on_host and work.setting.cuda):
        return 0.0
    layout = work.execution.layout
    return copy_seconds(work.cluster, whole / layout.tp / layout.weight_shards)


def step_on_host(work: Work, held: float, *, passes: float, clipping: float) -> RankTime:
    """The optimizer's step in the host's memory while the GPU waits, of `held` bytes of trained
    weights; without offloaded parameters gradients come, and new values go back."""
    if work.execution.parameters_on_host:
        return RankTime(held * (passes + clipping) / CPU_OPTIMIZER_BYTES_PER_SECOND, 0.0)
    clipped = device_of(work).bytes_moved(held * clipping)
    moved = 2 * copy_seconds(work.cluster, held)
    return RankTime(clipped + moved + held * passes / CPU_OPTIMIZER_BYTES_PER_SECOND, clipped)
