"""What is alive at each instant, by part (`spec.plan.forecast.PARTS`); the peak is the largest.

The order of a step: forward, loss, backward from the last block to the first, optimizer.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from shardwise.plan.costs import loss, pipeline
from shardwise.plan.costs.autocast import head_cast, kept_casts, step_casts, waiting_for_casts, weight_casts
from shardwise.plan.costs.fsdp import adds_in_place, kept_gradients, reduce_scatter_copy, unsharded_weights
from shardwise.plan.costs.gradients import all_reduce_buffer, bucket_bytes
from shardwise.plan.costs.optimizer import step_temporaries
from shardwise.plan.costs.recompute import saved_by_blocks, shared
from shardwise.plan.costs.zero1 import all_gather_buffer
from shardwise.plan.memory.backward import backward_of_block
from shardwise.plan.work import REDUCTION_BYTES, Alive, Scene, workspace_bytes

#: Which gradients exist: those of earlier micro-batches, with those of the head's unit, of the last
#: unit of blocks too ("last"), of all blocks but the first ("later") or of the whole micro-batch
#: ("every"); all, reduced; those in the buckets of data parallelism, which stay between steps. Up
#: to "last" they are told apart where they stay unsharded.
Gradients = Literal["earlier", "head", "last", "later", "every", "all", "buckets"]
#: Of a token: its id, label, position and two indices of trained positions, each an int64.
INPUT_BYTES = 5 * 8


def instants(scene: Scene) -> Iterator[tuple[str, Alive]]:
    """Every named instant of a step with what is alive at it, in the order of the step."""
    yield "loading", {"weights": scene.holding.stored}
    part, during = scene.part, _during(scene)
    first, last, head = part.span.start, part.span.stop - 1, part.inventory.ends[1].trained_elements
    if scene.flight.forwards:
        yield f"forward of layer {last}", _alive(scene, "earlier", during, _forward_of_last_block(scene))
        if part.is_last:
            yield "end of forward", _alive(scene, "earlier", during, _end_of_forward(scene))
    if part.is_last:
        yield "backward of the loss", _alive(scene, "earlier", during, _backward_of_loss(scene))
        if scene.work.sharded and part.trained_head and not part.inventory.tied:
            yield "reduction of the head", _alive(scene, "earlier", during, _reduction_of_head(scene))
    at_last = _backward_of_later_block(scene, blocks=1, behind=head)
    at_last["communication"] += pipeline.recv_grad(scene, last=True)
    yield f"backward of layer {last}", _alive(scene, "head", during, at_last)
    if len(part.span) > 2 and scene.work.sharded:
        yield f"backward of layer {last - 1}", _alive(scene, "last", during, _backward_of_middle_block(scene))
    yield f"backward of layer {first}", _alive(scene, "later", during, _backward_of_first_block(scene))
    if scene.flight.cut:
        yield "end of a backward of inputs", _alive(scene, "earlier", during, _end_of_cut_backward(scene))
    if part.is_first:
        yield "backward of the embedding", _alive(scene, "every", during, _backward_of_embedding(scene))
    # After the last backward nothing is in flight.
    between = inputs(scene)
    yield "sum of gradients over replicas", _alive(scene, "all", between, {"communication": all_reduce_buffer(scene)})
    yield "optimizer step", _alive(scene, "all", between, {"temporary": step_temporaries(scene)})
    yield "exchange of new weights", _alive(scene, "buckets", between, {"communication": all_gather_buffer(scene)})
    if scene.work.evaluates:
        yield "evaluation", _alive(scene, "buckets", between, _evaluation(scene))
    yield "saving", _alive(scene, "buckets", between, _saving(scene))


def gradient_bytes(scene: Scene, which: Gradients) -> float:
    """Bytes of the gradients that exist; unsharded ones in the type in which they are reduced."""
    work, holding = scene.work, scene.holding
    # DDP's buckets stay between steps; all other gradients are freed by `zero_grad`.
    if which == "buckets":
        return bucket_bytes(scene)
    if which != "all" and scene.turn is not None:
        return kept_gradients(scene, passed=_passed(scene, which))
    if which != "all" and (work.execution.postpones_reduction or work.execution.reduce_once):
        return scene.part.inventory.trained_elements * REDUCTION_BYTES
    if which == "all":
        return holding.gradients
    if scene.whole and work.execution.adds_replicas_once:
        return holding.gradients * REDUCTION_BYTES / work.types.trainable
    if which == "every" or scene.whole:
        return holding.gradients
    if which in ("earlier", "head", "last"):
        return 0
    # Under sharding the embedding's gradients are reduced, and stored, behind all others.
    root = scene.part.inventory.root.trained_elements * work.types.trainable
    if work.sharded:
        behind = scene.part.inventory.ends[1].trained_elements * work.types.trainable
        root = (root - behind) / work.execution.layout.weight_shards
    return max(0, holding.gradients - min(work.unit_blocks, len(scene.part.span)) * holding.block_gradients - root)


def _passed(scene: Scene, which: Gradients) -> int:
    """Trained elements of the units that a micro-batch's backward has passed."""
    inventory = scene.part.inventory
    head, unit = inventory.ends[1].trained_elements, scene.work.unit_blocks * inventory.block.trained_elements
    before = inventory.root.trained_elements - head
    every = inventory.trained_elements - before
    return max(0, {"earlier": 0, "head": head, "last": head + unit, "later": every - unit}.get(which, every))


def _alive(scene: Scene, gradients: Gradients, beside: Alive, own: Alive) -> Alive:
    holding = scene.holding
    alive: Alive = {
        **beside,
        "weights": holding.stored,
        "gradients": gradient_bytes(scene, gradients) + beside.get("gradients", 0),
        "optimizer": holding.optimizer,
    }
    for part, count in own.items():
        alive[part] = alive.get(part, 0) + count
    return alive


def _during(scene: Scene) -> Alive:
    """Alive throughout a micro-batch: its messages, and what those in flight beside it keep."""
    alive = at_work(scene)
    alive["temporary"] += step_casts(scene)
    others = scene if scene.beside is None else replace(scene, work=scene.beside)
    if scene.flight.cut > 1:  # backwards that wait for the gradients of weights
        alive["activations"] = (scene.flight.cut - 1) * pipeline.left_by_cut_backward(others)
    for count, of_one in (
        (scene.flight.pairs - 1, pipeline.of_one_in_flight),
        (scene.flight.heads - 1, pipeline.of_a_head),
    ):
        if count:
            for part, kept in of_one(others).items():
                alive[part] = alive.get(part, 0) + count * kept
    return alive


def at_work(scene: Scene) -> Alive:
    """While a micro-batch is at work, wherever in it: its inputs, and messages between ranks."""
    return {**inputs(scene), "communication": pipeline.messages(scene)}


def inputs(scene: Scene) -> Alive:
    """The micro-batch itself, and the libraries' workspaces, which stay."""
    return {"temporary": scene.work.tokens * INPUT_BYTES + workspace_bytes(scene.work.cluster.gpu)}


def saved_by_all(scene: Scene) -> float:
    """Blocks, final norm, and the gradient of what it gives."""
    return saved_by_blocks(scene, len(scene.part.span)) + shared(scene) + loss.saved_by_head(scene)


def _forward_of_last_block(scene: Scene) -> Alive:
    work, of, blocks = scene.work, scene.work.of_block, len(scene.part.span)
    own = work.tokens * (of.saved_whole + of.routed[0]) + of.remade + of.computed_weights
    return {
        "activations": saved_by_blocks(scene, blocks - 1) + own + shared(scene) + work.mlp_tokens * of.tile[0],
        "temporary": weight_casts(scene, blocks=blocks),
        "communication": unsharded_weights(scene, units=2, forward=True),
    }


def _end_of_forward(scene: Scene) -> Alive:
    """The loss of a chunk, after those of all others: gradients are made with it."""
    work = scene.work
    made, gradient = loss.in_loss(scene)
    several = work.execution.layout.weight_shards > 1
    # FSDP2 keeps the buffer of a forward's last unit: the head's or, where that is tied, a block's.
    buffer = several and scene.part.inventory.tied
    return {
        "activations": saved_by_all(scene) + loss.head_input(scene),
        "logits": made,
        "gradients": gradient,
        "temporary": weight_casts(scene, blocks=len(scene.part.span), at_work=0) + head_cast(scene),
        "communication": unsharded_weights(scene, units=0, behind=2 if several else 1, forward=buffer),
    }


def _backward_of_loss(scene: Scene) -> Alive:
    """The gradients that forward made are scaled, into their tensors' types."""
    alive = _behind_forward(scene)
    alive["communication"] += loss.unsharded_head_gradient(scene)
    return alive


def _behind_forward(scene: Scene) -> Alive:
    """What a forward saved, and the head's gradients."""
    return {
        "activations": saved_by_all(scene) + loss.head_input(scene),
        "gradients": loss.made_head_gradient(scene) + (0 if scene.work.sharded else loss.head_gradient(scene)),
        "temporary": kept_casts(scene, blocks=len(scene.part.span)),
        "communication": unsharded_weights(scene, units=0, behind=1),
    }


def _reduction_of_head(scene: Scene) -> Alive:
    """The gradient of norm and head leaves, its shard and the last block's weights come."""
    blocks, head, layout = len(scene.part.span), scene.part.inventory.ends[1], scene.work.execution.layout
    comes = scene.turn is None and layout.weight_shards > 1
    shard = head.trained_elements * REDUCTION_BYTES / layout.weight_shards if comes else 0
    return {
        "activations": saved_by_blocks(scene, blocks) + shared(scene) + loss.head_input(scene),
        "temporary": kept_casts(scene, blocks=blocks),
        "communication": unsharded_weights(scene, units=1) + reduce_scatter_copy(scene, head.trained_elements) + shard,
    }


def _backward_of_middle_block(scene: Scene) -> Alive:
    """The fullest of those behind which another block is reduced, while a third one has come."""
    behind = scene.work.unit_blocks * scene.part.inventory.block.trained_elements
    alive = _backward_of_later_block(scene, blocks=2, behind=behind)
    alive["communication"] += pipeline.recv_grad(scene)
    return alive


def _backward_of_later_block(scene: Scene, *, blocks: int, behind: int) -> Alive:
    """With what all but so many `blocks` have saved."""
    earlier, ahead = len(scene.part.span) - blocks, scene.flight.forwards
    alive = _backward_of_block(scene, behind=behind)
    alive["activations"] += saved_by_blocks(scene, earlier)
    alive["temporary"] += kept_casts(scene, blocks=earlier)
    alive["communication"] += unsharded_weights(scene, units=2 if ahead else 1)
    return alive


def _backward_of_first_block(scene: Scene) -> Alive:
    part, work = scene.part, scene.work
    behind = part.inventory.ends[1] if len(part.span) == 1 else part.inventory.block
    alive = _backward_of_block(scene, behind=work.unit_blocks * behind.trained_elements)
    # Backward gathers one unit ahead: last, a trained embedding. Its predecessor is being reduced.
    keeps = scene.flight.pairs > 1 or work.execution.postpones_reduction
    before = part.trained_embedding > 0 and scene.flight.forwards
    alive["temporary"] += waiting_for_casts(scene, blocks=len(part.span) - 1)
    alive["communication"] += unsharded_weights(scene, units=1, keeps=keeps, before=before) + pipeline.recv_grad(scene)
    return alive


def _backward_of_block(scene: Scene, *, behind: int) -> Alive:
    """What any block's backward needs, with the head's gradient where it is there by then."""
    alive = backward_of_block(scene, behind=behind)
    head = 0 if scene.work.sharded or scene.whole else loss.head_gradient(scene)
    alive["gradients"] = alive.get("gradients", 0) + head
    # A tied head's waits for that of the embedding.
    waits = scene.part.inventory.tied and (scene.part.is_first or not adds_in_place(scene))
    alive["communication"] += loss.unsharded_head_gradient(scene) if waits else 0
    return alive


def _end_of_cut_backward(scene: Scene) -> Alive:
    """All that the forward saved is still there for gradients of weights, and gradients of outputs
    (torch.distributed.pipelining, `stage_backward_input`), of waiting micro-batches too."""
    alive = _behind_forward(scene)
    alive["activations"] += pipeline.left_by_cut_backward(scene)
    return alive


def _backward_of_embedding(scene: Scene) -> Alive:
    work, part = scene.work, scene.part
    alive: Alive = {
        "activations": work.tokens * work.of_block.stream,
        "temporary": waiting_for_casts(scene, blocks=len(part.span)),
    }
    if work.sharded:
        # The buffer that reduces gradients of what lies before the blocks, beside a last pass.
        before = part.inventory.root.trained_elements - part.inventory.ends[1].trained_elements
        alive["communication"] = before * (REDUCTION_BYTES + work.types.compute * work.execution.postpones_reduction)
        if work.execution.postpones_reduction:
            alive["communication"] += unsharded_weights(scene, units=0, before=True)
    elif part.trained_embedding:
        # A dense gradient of the table; a tied head's waits to be added to it.
        tied = part.inventory.head_name == part.inventory.embedding_name and part.is_last
        fresh = part.trained_embedding * work.types.trainable
        alive["temporary"] += ((2 if tied else 1) - (not scene.whole)) * fresh
    return alive


def _evaluation(scene: Scene) -> Alive:
    """A forward that keeps nothing: the widest place of one block."""
    work = scene.work
    in_mlp = 3 * work.block.mlp_width * work.types.compute
    return {
        "activations": work.tokens * 2 * work.of_block.stream + work.mlp_tokens * in_mlp,
        "communication": unsharded_weights(scene, units=2, forward=True),
        "temporary": work.of_block.computed_weights + work.of_block.remade,
    }


def _saving(scene: Scene) -> Alive:
    """Trained tensors are brought together one at a time."""
    work, tp = scene.work, scene.work.execution.layout.tp
    # Slices and shards are gathered for the file, one weight after the other.
    return {"temporary": scene.part.largest_trained * tp * work.types.trainable if work.sharded or tp > 1 else 0}
