"""What a rank keeps of a micro-batch from its forward to its backward, and what moves between ranks meanwhile."""

from __future__ import annotations

from shardwise.plan.memory.buffers import kept_casts, made_head_gradient
from shardwise.plan.work import (
    Alive,
    Holding,
    Scene,
    Work,
    flights,
    longest_round,
    page_locked_bytes,
    sent_at_fullest,
    workspace_bytes,
)
from shardwise.spec.layout.axes import Layout, stages_per_rank
from shardwise.spec.layout.execution import SAVED_ON_GPU

#: Of a token: its id, label, position and two indices of trained positions, each an int64.
INPUT_BYTES = 5 * 8
#: Messages of a pipeline whose ranks have several stages, or split backward, beside what stages keep, at most: one that
#: arrives ahead, a gradient that arrives, one that leaves.
_MESSAGES = 3


def inputs(scene: Scene) -> Alive:
    """The micro-batch itself, and the libraries' workspaces, which stay."""
    return {"temporary": scene.work.tokens * INPUT_BYTES + workspace_bytes(scene.work.cluster.gpu)}


def at_work(scene: Scene) -> Alive:
    """While a micro-batch is at work, wherever in it: its inputs, and messages between ranks."""
    return {**inputs(scene), "communication": _messages(scene)}


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
    return {"activations": _saved_by_head(scene), "gradients": made_head_gradient(scene)}


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


def saved_by_blocks(scene: Scene, blocks: int, *, skips: bool = True) -> float:
    """What so many blocks keep; the model's first may keep less where the embedding is frozen (`skips`)."""
    work = scene.work
    saved = (_on_gpu(scene, blocks) if work.saves_on_host else blocks) * work.saved
    if skips and scene.part.is_first:
        saved -= work.unsaved
    return work.tokens * saved + (blocks * (work.remade_by_mean + work.causal_masks) if work.keeps_remade else 0.0)


def _on_gpu(scene: Scene, blocks: int) -> int:
    """Blocks whose saved tensors are on the GPU at a time, where they wait in the host's memory: with others in flight,
    also the last of each stage's newest micro-batch, which has not left while the backward of an older one runs."""
    newest = stages_per_rank(scene.work.execution.layout.schedule) if scene.flight.pairs > 1 else 0
    return min(blocks, SAVED_ON_GPU) + newest


def saved_on_host(work: Work, holding: Holding) -> int:
    """Bytes of page-locked memory for what a rank's blocks save, of all micro-batches in flight."""
    if not work.saves_on_host:
        return 0
    execution, blocks = work.execution, len(holding.part.span)
    ways = flights(execution.layout, pp=holding.part.pp, num_micro_batches=execution.gradient_accumulation_steps)
    of_one = sum(page_locked_bytes(work.tokens * size) for size in work.saved_tensors)
    return max(flight.pairs for flight in ways) * blocks * of_one


def saved_by_all(scene: Scene) -> float:
    """Blocks, final norm, and the gradient of what it gives."""
    return saved_by_blocks(scene, len(scene.part.span)) + shared(scene) + _saved_by_head(scene)


def _saved_by_head(scene: Scene) -> float:
    """What the final norm saves, and the gradient of the head's input, which the loss has made in forward."""
    return scene.work.tokens * scene.work.final_norm + head_input(scene)


def head_input(scene: Scene) -> float:
    """What the final norm gives."""
    return scene.work.tokens * scene.work.model.hidden_size * scene.work.types.compute


def shared(scene: Scene) -> float:
    """What all blocks share: rotary tables, and the mask where attention has one."""
    work, length = scene.work, scene.work.job.data.max_length
    # Sines and cosines of every sequence's own positions.
    rotary = 0 if work.model.position_parameters else 2 * work.model.head_dim * work.types.compute * work.tokens
    # A boolean mask for each sequence; PyTorch's kernels read it as numbers of the compute type.
    mask = work.tokens * length * (1 + work.types.compute) if work.setting.masked else 0
    return rotary + mask


def of_one_block(scene: Scene) -> float:
    """What a block has saved, or made again, when its backward begins, and the gradient of what it gave."""
    work = scene.work
    recomputed = work.execution.recompute != "none" and not work.reads_in_place
    saved = work.saved_whole + (work.block_input if recomputed else 0.0) + work.unasked + work.block_backward[0]
    return work.tokens * saved + shared(scene) + work.remade + work.causal_masks


def _messages(scene: Scene) -> float:
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


def keys_of_others(scene: Scene) -> float:
    """In attention, with a sequence over several ranks: keys and values of all of it, as they come and in order, beside
    one's own that go out; their gradients likewise."""
    work, cp = scene.work, scene.work.execution.layout.cp
    if cp == 1:
        return 0
    values = work.block.value_head_dim or work.block.head_dim
    widths = work.block.num_key_value_heads * (work.block.head_dim + values)
    return 2 * (1 + cp) * work.tokens * widths * work.types.compute
