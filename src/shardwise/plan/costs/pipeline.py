"""Pipeline stages: what micro-batches in flight keep, and messages of ranks: bytes, seconds."""

from shardwise.plan.costs.autocast import kept_casts
from shardwise.plan.costs.loss import made_head_gradient, saved_by_head
from shardwise.plan.costs.recompute import saved_by_blocks, shared
from shardwise.plan.rates import group_of
from shardwise.plan.work import Alive, Scene, Work, longest_round
from shardwise.spec.layout.axes import Layout, stages_per_rank
from shardwise.spec.model.stages import stage_blocks

#: Messages of a pipeline whose ranks have several stages, or split backward, beside what stages
#: keep, at most: one that arrives ahead, a gradient that arrives, one that leaves.
_MESSAGES = 3


def of_one_in_flight(scene: Scene) -> Alive:
    """What a stage keeps of one more micro-batch in flight, without what its head keeps."""
    blocks, pairs, execution = len(scene.part.span), scene.flight.pairs, scene.work.execution
    length = longest_round(execution.gradient_accumulation_steps, execution.layout.pp)
    length = length if execution.layout.schedule == "interleaved" else pairs
    # Rounds go through the first stage and the other of a rank in turn.
    of_first = pairs // (2 * length) * length + min(length, pairs % (2 * length))
    beside = shared(scene, of_first=(of_first - 1) / (pairs - 1))
    return {
        "activations": (0 if scene.work.saves_on_host else saved_by_blocks(scene, blocks)) + beside,
        "temporary": kept_casts(scene, blocks=blocks),
        "communication": _kept_messages(scene),
    }


def of_a_head(scene: Scene) -> Alive:
    """What the last stage's head and loss keep of one more micro-batch in flight."""
    if not scene.part.is_last:
        return {}
    return {"activations": saved_by_head(scene), "gradients": made_head_gradient(scene)}


def left_by_cut_backward(scene: Scene) -> float:
    """What the backward of inputs leaves for that of weights, of all blocks."""
    return scene.work.tokens * len(scene.part.span) * scene.work.of_block.cut_backward


def messages(scene: Scene) -> float:
    """Received and sent between pipeline stages for the micro-batch at work, and in flight."""
    work, part = scene.work, scene.part
    # The gradient that left last is let go when the next message is sent.
    left = _bytes(work, part.span.start) if scene.flight.gradients and not part.is_first else 0
    beside = _beside(work) if _splits(work.execution.layout) else left
    return _kept_messages(scene) + beside


def _beside(work: Work) -> float:
    """Messages that no stage keeps, of ranks with several stages or split backward: gloo reports no
    arrival, so one for each micro-batch and stage is kept to the end of a step."""
    every, execution = _between_stages(work), work.execution
    if work.setting.cuda:
        return _MESSAGES * max(every)
    return stages_per_rank(execution.layout.schedule) * execution.gradient_accumulation_steps * sum(every) / len(every)


def recv_grad(scene: Scene, *, last: bool = False) -> float:
    """What a stage gave, as received; while its `last` block goes backward, but for the stream."""
    work, part = scene.work, scene.part
    stream = _bytes(work, 0) if last or len(part.span) == 1 else 0
    return 0 if part.is_last or _splits(work.execution.layout) else _bytes(work, part.span.stop) - stream


def _splits(layout: Layout) -> bool:
    return layout.pp > 1 and layout.schedule in ("zero_bubble", "interleaved")


def _kept_messages(scene: Scene) -> float:
    """What a stage received for a micro-batch, less the stream if its first block keeps that itself
    and no multiple of it, and what it made of it, both kept until the gradients have passed."""
    work, part = scene.work, scene.part
    received = _bytes(work, part.span.start) - _keeps_input_itself(work) * _bytes(work, 0)
    return (not part.is_first) * received + (not part.is_last) * _bytes(work, part.span.stop)


def _between_stages(work: Work) -> list[float]:
    """Of each message between stages."""
    stages = stage_blocks(work.model, num_stages=work.execution.layout.num_stages)
    return [_bytes(work, blocks.start) for blocks in stages[1:]]


def _bytes(work: Work, first: int) -> float:
    """Of what a stage is sent whose `first` block that is; for 0, of the stream alone."""
    return work.tokens * work.model.message(first) * work.types.compute


def _keeps_input_itself(work: Work) -> bool:
    """Whether a stage's first block keeps what the stage received, as it came."""
    saved = work.execution.recompute != "none" or work.of_block.reads_in_place
    return saved and not (work.model.scales_stream or work.saves_on_host)


def send_seconds(work: Work) -> float:
    """Seconds until a micro-batch's stream has reached the next stage; each tp rank sends all."""
    pipe = group_of(work.cluster, work.execution.layout, "pp")
    return pipe.message(max(_between_stages(work), default=0.0))
