"""The optimizer's step: what it needs beside its states, and its seconds."""

from shardwise.plan.costs.offload import step_on_host
from shardwise.plan.costs.piece import RankTime, device_of
from shardwise.plan.work import Scene, Work

#: Optimizers read weight, gradient, states, write weight, states; clipping reads gradients twice.
_OPTIMIZER_PASSES, _CLIPPING_PASSES = 2.0, 2.0
_OPTIMIZER_OPERATORS = 40


def step_temporaries(scene: Scene) -> float:
    """What an optimizer's step needs beside its states; SGD on a GPU copies of all gradients."""
    work, held = scene.work, scene.holding.gradients
    made = work.execution.optimizer_rule.temporaries
    if made == "none" or (made == "decayed" and not work.job.train.weight_decay):
        return 0
    if work.execution.optimizer_on_host and work.setting.cuda:
        return 0
    if made == "all" or (made == "decayed" and work.setting.cuda):
        return held
    return min(held, scene.part.largest_trained * work.types.trainable)


def optimizer_step(work: Work, trained: float) -> RankTime:
    """Reads and writes of this rank's weights, gradients, states; operators launched for each."""
    device, share = device_of(work), trained / work.execution.layout.shard_degree
    states, width = work.execution.optimizer_rule.moments, work.types.trainable
    passes = (2 + states) * _OPTIMIZER_PASSES
    if work.execution.optimizer_on_host and work.setting.cuda:
        return step_on_host(work, share * width, passes=passes, clipping=_CLIPPING_PASSES)
    seconds = device.bytes_moved(share * width * (passes + _CLIPPING_PASSES))
    host = _OPTIMIZER_OPERATORS * device.operator_seconds
    return RankTime(seconds + host if work.cluster.gpu.kind == "cpu" else max(seconds, host), seconds)
