"""Pipeline stages: what other micro-batches in flight keep, and the messages between ranks, in bytes and seconds."""

from __future__ import annotations

from functools import lru_cache

from shardwise.plan.costs.autocast import kept_casts
from shardwise.plan.costs.block import saved_by_blocks, shared
from shardwise.plan.costs.loss import head_input, made_head_gradient, saved_by_head
from shardwise.plan.rates import group_of
from shardwise.plan.work import Alive, Scene, Work, longest_round, pairs_in_flight
from shardwise.spec.layout.axes import Layout, Schedule, stages_per_rank
from shardwise.spec.layout.schedule import order_of

#: Messages of a pipeline whose ranks have several stages, or split backward, beside what stages keep, at most: one that
#: arrives ahead, a gradient that arrives, one that leaves.
_MESSAGES = 3


def of_a_pair(scene: Scene) -> Alive:
    """What a stage keeps of one more micro-batch in flight, without what its head keeps."""
    blocks = len(scene.part.span)
    return {
        "activations": (0 if scene.work.saves_on_host else saved_by_blocks(scene, blocks)) + shared(scene),
        "temporary": kept_casts(scene, blocks=blocks),
        "communication": _kept_messages(scene),
    }


def of_a_head(scene: Scene) -> Alive:
    """What the last stage's head and loss keep of one more micro-batch in flight."""
    if not scene.part.is_last:
        return {}
    return {"activations": saved_by_head(scene), "gradients": made_head_gradient(scene)}


def of_a_cut_backward(scene: Scene) -> Alive:
    """What one more micro-batch keeps whose backward waits for the gradients of weights, beside what it saved."""
    return {"activations": left_by_cut_backward(scene)}


def pairs_of_later_stages(scene: Scene) -> int:
    """Of the pairs in flight beside the one at work on the first of several ranks: those of its later stage."""
    layout, micros = scene.work.execution.layout, scene.work.execution.gradient_accumulation_steps
    if not scene.part.is_first or stages_per_rank(layout.schedule) == 1 or layout.pp == 1:
        return 0
    return min(scene.flight.pairs - 1, longest_round(micros, layout.pp))


def of_a_later_stage(scene: Scene) -> Alive:
    """What such a pair keeps more than one of the first stage."""
    received = 0 if _keeps_input_itself(scene.work) else head_input(scene)
    return {"activations": scene.work.tokens * scene.work.unsaved, "communication": received}


def left_by_cut_backward(scene: Scene) -> float:
    """What the backward of inputs leaves for that of weights, of all blocks."""
    return scene.work.tokens * len(scene.part.span) * scene.work.cut_backward


def messages(scene: Scene) -> float:
    """Between pipeline stages: what came in and goes out of the pair at work, and what is under way."""
    layout = scene.work.execution.layout
    if layout.pp == 1:
        return 0
    if not _is_plain(layout):
        return _kept_messages(scene) + (_MESSAGES if scene.work.setting.cuda else _sent(scene)) * head_input(scene)
    return _kept_messages(scene) + _under_way(scene) * head_input(scene)


def _under_way(scene: Scene) -> int:
    """Messages of micro-batches that are done: the gradient that left last, which is let go when the next message is
    sent. gloo says of none that it has arrived, so that all are kept to the end of a step."""
    work, part = scene.work, scene.part
    if not scene.flight.gradients:
        return 0
    if work.setting.cuda:
        return int(not part.is_first)
    done = work.execution.gradient_accumulation_steps - scene.flight.pairs
    return done * ((not part.is_first) + (not part.is_last))


def _sent(scene: Scene) -> int:
    """Messages that gloo keeps, where ranks have several stages or split backward."""
    execution = scene.work.execution
    schedule, micros = execution.layout.schedule, execution.gradient_accumulation_steps
    return sent_at_fullest(schedule, num_ranks=execution.layout.pp, rank=scene.part.pp, num_micro_batches=micros)


@lru_cache(maxsize=65536)
def sent_at_fullest(schedule: Schedule, *, num_ranks: int, rank: int, num_micro_batches: int) -> int:
    """Messages that a rank has sent when as many of its pairs as ever are alive for the last time; but for the last
    rank without results of pairs that are alive themselves."""
    most = pairs_in_flight(schedule, num_ranks=num_ranks, rank=rank, num_micro_batches=num_micro_batches)
    alive = sent = until = 0
    last = num_ranks * stages_per_rank(schedule) - 1
    for kind, stage, _ in order_of(schedule, num_ranks=num_ranks, rank=rank, num_micro_batches=num_micro_batches):
        alive += kind == "forward"
        if alive >= most:
            until = sent
        done = kind in ("backward", "backward_weight")
        sent += stage < last and (kind == "forward" if rank == num_ranks - 1 else done)
        sent += stage > 0 and kind in ("backward", "backward_input")
        alive -= done
    return until


def came_gradient(scene: Scene) -> float:
    """Of what a stage gave, as it came from another rank: it stays while all of its blocks are gone through."""
    layout = scene.work.execution.layout
    alone = scene.part.is_last or layout.pp == 1 or not _is_plain(layout)
    return 0 if alone else head_input(scene)


def arrived_gradient(scene: Scene) -> float:
    """The same beside all blocks but the last, which has counted it."""
    return 0 if len(scene.part.span) == 1 else came_gradient(scene)


def _is_plain(layout: Layout) -> bool:
    return layout.schedule not in ("zero_bubble", "interleaved")


def _kept_messages(scene: Scene) -> float:
    """What a stage received for a micro-batch, unless its first block keeps that itself and no multiple of it, and what
    it made of it, both kept until the gradients have passed."""
    part = scene.part
    kept = (not part.is_first and not _keeps_input_itself(scene.work)) + (not part.is_last)
    return kept * head_input(scene)


def _keeps_input_itself(work: Work) -> bool:
    """Whether a stage's first block keeps what the stage received, as it came."""
    saved = work.execution.recompute != "none" or work.reads_in_place
    return saved and not (work.model.scales_stream or work.saves_on_host)


def send_seconds(work: Work) -> float:
    """Seconds until a micro-batch's stream has reached the next stage; each tp rank sends all of it."""
    layout = work.execution.layout
    tokens = work.execution.micro_batch_size * work.job.data.max_length / layout.cp
    return group_of(work.cluster, layout, "pp").message(tokens * work.model.hidden_size * work.types.compute)
