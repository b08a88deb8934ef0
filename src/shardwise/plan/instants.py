"""What is alive at each named instant of a training step, part by part; the peak is the largest of them.

An instant is a function from a scene to bytes by part. Parts follow `spec.plan.PARTS`; what lies outside the allocator
is added by the caller. The order of a step: forward, loss, backward from the last block to the first, optimizer. With
several micro-batches a later one is the fullest, because gradients are already there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwise.plan.buffers import (
    flat_gradients,
    fresh_gradient,
    gathered,
    head_cast,
    head_gradient,
    in_reduction,
    kept_casts,
    log_probabilities,
    logits_forward,
    step_temporaries,
    weight_casts,
    whole_head_gradient,
)
from shardwise.plan.parts import Part
from shardwise.plan.scene import Scene
from shardwise.plan.types import FLOAT32_BYTES, REDUCTION_BYTES

Alive = dict[str, float]
Instant = Callable[[Scene], Alive]

_INT64_BYTES = 8
#: Token ids, labels, positions and indices of trained positions, each an int64 per token.
_INPUT_TENSORS = 5
#: float32 copies of the logits alive in the loss's backward: log-probabilities, the gradient of the picked ones
#: scattered over all, and that of the logits.
_LOGIT_COPIES_BACKWARD = 3
#: Messages of a pipeline beside what stages keep: one that arrives ahead, a gradient that arrives, one that leaves.
_MESSAGES = 3


def instants(part: Part) -> Iterator[tuple[str, Instant]]:
    """Every named instant of a step on ranks that hold a part."""
    yield "loading", _loading
    yield from instants_of_micro_batch(part)
    yield from INSTANTS_BETWEEN


def instants_of_micro_batch(part: Part) -> Iterator[tuple[str, Instant]]:
    """Those within the forward and backward of a micro-batch, beside which others may be in flight."""
    first, last = part.span.start, part.span.stop - 1
    yield f"forward of layer {last}", _forward_of_last_block
    if part.is_last:
        yield "end of forward", _end_of_forward
        yield "backward of the loss", _backward_of_loss
        yield "backward of the head", _backward_of_head
    yield f"backward of layer {last}", _backward_of_last_block
    yield f"backward of layer {first}", _backward_of_first_block
    if part.is_first:
        yield "backward of the embedding", _backward_of_embedding


def _loading(scene: Scene) -> Alive:
    return {"weights": scene.holding.weights, "communication": scene.holding.padding}


def _optimizer_step(scene: Scene) -> Alive:
    alive = _between(scene, gradients=scene.holding.gradients)
    _add(alive, "temporary", step_temporaries(scene.work, scene.part, held=scene.holding.gradients))
    return alive


def _sum_over_replicas(scene: Scene) -> Alive:
    alive = _between(scene, gradients=scene.holding.gradients)
    _add(alive, "communication", flat_gradients(scene.work, scene.part, gradients=scene.holding.gradients))
    return alive


def _evaluation(scene: Scene) -> Alive:
    """A forward that keeps nothing: the widest place of one block. Its logits are those of the end of a forward."""
    work = scene.work
    alive = _between(scene, gradients=scene.holding.gradients if work.replicated else 0)
    in_block = 2 * work.block_input + 3 * work.block.mlp_width * work.types.compute
    _add(alive, "activations", scene.tokens * in_block)
    _add(alive, "communication", gathered(scene, blocks_beside_kept=2))
    _add(alive, "temporary", work.computed_weights)
    return alive


def _saving(scene: Scene) -> Alive:
    """Trained tensors are brought together one at a time."""
    work = scene.work
    alive = _between(scene, gradients=scene.holding.gradients if work.replicated else 0)
    layout = work.execution.layout
    largest = scene.part.largest_trained * layout.tp
    _add(alive, "temporary", largest * work.types.trainable if work.sharded or layout.tp > 1 else 0)
    return alive


def _between(scene: Scene, *, gradients: float) -> Alive:
    """What is alive at every instant of a step, with so many bytes of gradients."""
    holding = scene.holding
    return {
        "weights": holding.weights,
        "gradients": gradients,
        "optimizer": holding.optimizer,
        "communication": holding.padding,
        "temporary": _INPUT_TENSORS * scene.tokens * _INT64_BYTES,
    }


def _during(scene: Scene, *, gradients: float | None = None) -> Alive:
    """What is alive while one micro-batch is at work: beside it, those in flight, and messages between stages."""
    if gradients is None:
        gradients = scene.holding.gradients if scene.whole else 0
    alive = _between(scene, gradients=gradients)
    for count, of_one in ((scene.flight.pairs - 1, of_a_pair), (scene.flight.heads - 1, of_a_head)):
        if count:
            for part, kept in of_one(scene).items():
                _add(alive, part, count * kept)
    _add(alive, "communication", _messages(scene) + _keys_of_others(scene))
    return alive


def of_a_pair(scene: Scene) -> Alive:
    """What a stage keeps of one more micro-batch in flight, without what its head keeps."""
    blocks = len(scene.part.span)
    return {
        "activations": _saved_by_blocks(scene, blocks) + _shared(scene),
        "temporary": kept_casts(scene, blocks=blocks),
        "communication": _kept_messages(scene),
    }


def of_a_head(scene: Scene) -> Alive:
    """What the last stage's head and loss keep of one more micro-batch in flight."""
    if not scene.part.is_last:
        return {}
    return {"activations": _saved_by_head(scene), "logits": log_probabilities(scene)}


def _forward_of_last_block(scene: Scene) -> Alive:
    alive, blocks = _during(scene), len(scene.part.span)
    kept = _saved_by_blocks(scene, blocks - 1, skips=False) + scene.tokens * scene.work.saved_whole
    _add(alive, "activations", kept + _shared(scene))
    _add(alive, "temporary", weight_casts(scene, blocks=blocks) + scene.work.computed_weights)
    # The buffer the unit arrived in and the weights copied out of it are alive together.
    _add(alive, "communication", gathered(scene, blocks_beside_kept=2))
    return alive


def _end_of_forward(scene: Scene) -> Alive:
    alive = _during(scene)
    _add(alive, "activations", _saved_by_all(scene))
    _add(alive, "logits", logits_forward(scene))
    _add(alive, "temporary", weight_casts(scene, blocks=len(scene.part.span)) + head_cast(scene))
    _add(alive, "communication", gathered(scene, blocks_beside_kept=0))
    return alive


def _backward_of_loss(scene: Scene) -> Alive:
    alive, work = _during(scene), scene.work
    _add(alive, "activations", _saved_by_all(scene))
    _add(alive, "logits", scene.head_tokens * work.model.vocab_size * FLOAT32_BYTES * _LOGIT_COPIES_BACKWARD)
    _add(alive, "temporary", kept_casts(scene, blocks=len(scene.part.span)))
    if scene.chunks:
        _add(alive, "gradients", 0 if scene.whole or work.sharded else head_gradient(scene))
        _add(alive, "communication", whole_head_gradient(scene))
    _add(alive, "communication", gathered(scene, blocks_beside_kept=0))
    return alive


def _backward_of_head(scene: Scene) -> Alive:
    alive, work = _during(scene), scene.work
    _add(alive, "activations", _saved_by_all(scene) + scene.tokens * work.model.hidden_size * work.types.compute)
    _add(alive, "logits", scene.head_tokens * work.model.vocab_size * work.types.compute)
    _add(alive, "temporary", kept_casts(scene, blocks=len(scene.part.span)) + head_cast(scene))
    _add(alive, "communication", gathered(scene, blocks_beside_kept=0) + whole_head_gradient(scene))
    _add(alive, "temporary", fresh_gradient(work, scene.part.trained_head))
    return alive


def _backward_of_last_block(scene: Scene) -> Alive:
    alive, work = _during(scene), scene.work
    blocks = len(scene.part.span) - 1
    _add(alive, "activations", _saved_by_blocks(scene, blocks) + _shared(scene) + _of_one_block(scene))
    _add(alive, "temporary", kept_casts(scene, blocks=blocks) + weight_casts(scene, blocks=1, head=False))
    _add(alive, "communication", gathered(scene, blocks_beside_kept=2) + whole_head_gradient(scene))
    _add(alive, "communication", in_reduction(work, scene.part.inventory.block))
    if not (work.sharded or scene.whole):
        _add(alive, "gradients", head_gradient(scene))
    _add(alive, "temporary", _inside_block(scene))
    return alive


def _backward_of_first_block(scene: Scene) -> Alive:
    work, holding = scene.work, scene.holding
    gradients = holding.gradients
    if not scene.whole:
        root = 0 if work.sharded else scene.part.inventory.root.trained_elements * work.types.trainable
        gradients = max(0, holding.gradients - holding.block_gradients - root)
        gradients += 0 if work.sharded else head_gradient(scene)
    alive = _during(scene, gradients=gradients)
    _add(alive, "activations", _of_one_block(scene))
    _add(alive, "temporary", weight_casts(scene, blocks=1, head=False) + _inside_block(scene))
    # Backward gathers one unit ahead; before the first block there is none, but its predecessor is being reduced.
    _add(alive, "communication", gathered(scene, blocks_beside_kept=1, keeps=scene.fills))
    _add(alive, "communication", whole_head_gradient(scene) + in_reduction(work, scene.part.inventory.block))
    return alive


def _backward_of_embedding(scene: Scene) -> Alive:
    work, part = scene.work, scene.part
    alive = _during(scene, gradients=scene.holding.gradients)
    _add(alive, "activations", scene.tokens * work.block_input)
    if work.sharded:
        # Whole gradients of the root in the compute type, copied into the float32 buffer that is reduced.
        whole = part.inventory.root.trained_elements
        _add(alive, "communication", whole * (work.types.compute + REDUCTION_BYTES))
    elif part.trained_embedding:
        # A dense gradient of the table; a tied head's waits to be added to it.
        shared = part.inventory.tied and part.is_last
        fresh = work.types.compute if work.setting.casts and shared else work.types.trainable
        _add(alive, "temporary", ((2 if shared else 1) - (not scene.whole)) * part.trained_embedding * fresh)
    return alive


def _add(alive: Alive, part: str, count: float) -> None:
    alive[part] = alive.get(part, 0) + count


def _messages(scene: Scene) -> float:
    """Between pipeline stages: what came in and goes out of the pair at work, and what is under way."""
    if scene.work.execution.layout.pp == 1:
        return 0
    return _kept_messages(scene) + _MESSAGES * scene.tokens * scene.work.model.hidden_size * scene.work.types.compute


def _kept_messages(scene: Scene) -> float:
    """What a stage received for a micro-batch, and what it made of it, both kept until the gradients have passed."""
    work, part = scene.work, scene.part
    kept = (not part.is_first) + (not part.is_last)
    return kept * scene.tokens * work.model.hidden_size * work.types.compute


def _keys_of_others(scene: Scene) -> float:
    """With a sequence over several ranks: keys and values that come in while one's own go out."""
    work = scene.work
    if work.execution.layout.cp == 1:
        return 0
    values = work.block.value_head_dim or work.block.head_dim
    widths = work.block.num_key_value_heads * (work.block.head_dim + values)
    return 2 * scene.tokens * widths * work.types.compute


def _saved_by_blocks(scene: Scene, blocks: int, *, skips: bool = True) -> float:
    """What so many blocks keep; the model's first block need not keep what only the embedding's gradient needs."""
    work = scene.work
    saved = blocks * work.saved
    if skips and scene.part.is_first:
        saved -= work.unsaved
    return scene.tokens * saved


def _saved_by_head(scene: Scene) -> float:
    """Final norm, and the head's input."""
    work = scene.work
    inventory, c = work.inventory, work.types.compute
    norm = FLOAT32_BYTES + (c if inventory.trained("final_norm") else 0)
    head = c if scene.part.trained_head else 0
    copied = c if work.chunked else 0
    return scene.tokens * work.model.hidden_size * (norm / work.setting.tp + head + copied)


def _saved_by_all(scene: Scene) -> float:
    """Blocks, final norm and the head's input."""
    return _saved_by_blocks(scene, len(scene.part.span)) + _shared(scene) + _saved_by_head(scene)


def _shared(scene: Scene) -> float:
    """What all blocks share: rotary tables, and the mask where attention has one."""
    work, length = scene.work, scene.work.job.data.max_length
    rotary = 0 if work.model.position_parameters else 2 * work.model.head_dim * work.types.compute * length
    # A boolean mask for each sequence; PyTorch's kernels read it as numbers of the compute type.
    mask = scene.tokens * length * (1 + work.types.compute) if work.setting.masked else 0
    return rotary + mask


def _of_one_block(scene: Scene) -> float:
    """A block in its backward: all it needs, saved or computed again, and the gradients inside it."""
    work = scene.work
    recomputed = work.execution.gradient_checkpointing != "none"
    block_input = work.block_input if recomputed else 0.0
    saved = work.saved_whole + block_input + work.block_backward
    return scene.tokens * saved + _shared(scene)


def _inside_block(scene: Scene) -> float:
    """Weight-sized temporaries of a block's backward."""
    return fresh_gradient(scene.work, scene.part.inventory.block.largest_trained) + scene.work.computed_weights


#: Instants after the last backward of a step, when nothing is in flight.
INSTANTS_BETWEEN: tuple[tuple[str, Instant], ...] = (
    ("sum of gradients over replicas", _sum_over_replicas),
    ("optimizer step", _optimizer_step),
    ("evaluation", _evaluation),
    ("saving", _saving),
)
