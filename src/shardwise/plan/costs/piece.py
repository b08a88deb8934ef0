"""Stretches of a rank's time: the device that they run on, and the host that launches them."""

from functools import partial
from typing import NamedTuple

from shardwise.plan.rates import COMPILED_OPERATORS_SHARE, Device
from shardwise.plan.work import Work


class RankTime(NamedTuple):
    """One stretch of a rank's time, and how much of it kernels, or only collectives, run."""

    seconds: float
    computing: float
    talking: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds in which any kernel runs."""
        return self.computing + self.talking


NO_TIME = RankTime(0.0, 0.0)


class MessageTime(NamedTuple):
    """Seconds of collectives: gathering the mean block's weights, again in backward, reducing its
    gradients; the same of what lies before and beside blocks (`outer_`); of norm and head."""

    gather: float = 0.0
    again: float = 0.0
    reduce: float = 0.0
    outer_gather: float = 0.0
    outer_reduce: float = 0.0
    outer_again: float = 0.0
    head_gather: float = 0.0
    head_reduce: float = 0.0


class BlockTime(NamedTuple):
    """Seconds of the mean block's kernels: forward, backward; in backward, gradients of weights; in
    forward, what selective recompute repeats, what lies between products, attention. Of messages in
    a pass: of slices, of keys and values; operators of a forward; and head and loss."""

    forward: float
    backward: float
    weights: float
    operators: float
    remade: float = 0.0
    between: float = 0.0
    attention: float = 0.0
    slices: float = 0.0
    keys: float = 0.0
    loss: RankTime = NO_TIME


def device_of(work: Work) -> Device:
    """The rank's GPU, in the type that it computes in. CPU processes share all cores."""
    gpu, types = work.cluster.gpu, work.types
    share = work.cluster.num_gpus / work.execution.layout.world_size if gpu.kind == "cpu" else 1.0
    key = ("device", id(gpu), types.compute_name, share)  # the entry keeps the GPU alive
    made = partial(Device, gpu=gpu, compute=types.compute_name, element_bytes=types.compute, share=share)
    return work.of_job(key, made)


def launched(work: Work, seconds: float, *, operators: float, talking: float = 0.0) -> RankTime:
    """A GPU waits where the host launches more slowly than it computes."""
    host = operators * device_of(work).operator_seconds
    if work.cluster.gpu.kind == "cpu":
        return RankTime(seconds + host + talking, seconds, talking)
    if work.execution.compile:
        host *= COMPILED_OPERATORS_SHARE
    return RankTime(max(seconds, host) + talking, seconds, talking)
