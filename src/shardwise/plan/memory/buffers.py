"""What comes and goes around computation: casts, gathered weights, reduction buffers, logits, temporaries."""

from __future__ import annotations

from shardwise.plan.memory.reduced_once import adds_in_place, passes
from shardwise.plan.work import FLOAT32_BYTES, REDUCTION_BYTES, Scene, Work, weight_degree
from shardwise.spec.layout.execution import FLAT_BYTES


def weight_casts(scene: Scene, *, blocks: float, at_work: float = 1) -> float:
    """Copies of blocks' trained matrices: in the compute type, which autocast makes at first use and keeps (those that
    stay for the whole step are counted by `step_casts`); and those of plain adapters, which their joined product saves
    for its backward, so that under recompute only a block that is `at_work` has them."""
    execution = scene.work.execution
    by_product = at_work if execution.recompute != "none" else blocks
    # Autocast keeps its copies of parameters, and not those of their slices or in compiled blocks: the products do.
    cast = by_product if execution.layout.tp > 1 or execution.compile else blocks
    of = scene.part.cast_experts if execution.keeps_casts else scene.part.cast_matrices
    return by_product * _joined_copies(scene) + _casts(scene, of, blocks=cast)


def step_casts(scene: Scene) -> float:
    """Those that all micro-batches of a step use, and the head's."""
    if not scene.work.execution.keeps_casts:
        return 0
    head = _head_cast(scene) if scene.part.trained_head else 0
    return _cast_once(scene, blocks=scene.part.inventory.num_blocks) + head


def waiting_for_casts(scene: Scene, *, blocks: int) -> float:
    """Gradients of casts that all micro-batches of a step use, of blocks that a backward has passed. In a later one
    than the first they wait for its end: autograd goes first to what was made last, and the casts were made before."""
    later = scene.work.execution.keeps_casts and scene.flight.gradients
    return _cast_once(scene, blocks=blocks) if later else 0


def _casts(scene: Scene, of: tuple[float, float], *, blocks: float) -> float:
    """Copies of so many elements `of` the largest block, or of the mean one, in the compute type."""
    largest, mean = of
    return blocks * (largest if blocks == 1 else mean) * scene.work.types.compute if scene.work.setting.casts else 0


def _cast_once(scene: Scene, *, blocks: float) -> float:
    """Those that autocast makes, and keeps for a step where it is to; those of stacked experts each forward makes
    (`models/routing.py`)."""
    of_experts = _casts(scene, scene.part.cast_experts, blocks=blocks)
    return _casts(scene, scene.part.cast_matrices, blocks=blocks) - of_experts


def _joined_copies(scene: Scene) -> float:
    """Of the mean block: A's are brought together, B's cast where they are wider. Compiled, a single A is no copy, and
    where products are made again each is by itself (`train/model.py`)."""
    (a, b), execution = scene.part.joined_adapters, scene.work.execution
    if scene.work.setting.casts:
        return (a + b) * scene.work.types.compute
    if execution.compile:
        a = a - scene.part.lone_adapters if execution.recompute == "none" else 0
    return a * scene.work.types.compute


def kept_casts(scene: Scene, *, blocks: float) -> float:
    """Those that outlive the forward, because a backward needs them: not where blocks are computed again."""
    kept = blocks if scene.work.execution.recompute == "none" else 0
    return weight_casts(scene, blocks=kept, at_work=0)


def gathered(
    scene: Scene, *, units: int, forward: bool = False, keeps: bool = True, before: bool = False, behind: int = 0
) -> float:
    """Whole weights under sharding: the root always, the unit at work and those ahead, or (ZeRO-2) every block.

    Args:
        units: 0 for the root alone, 1 with the unit at work, 2 with those that are gathered ahead of it.
        forward: the buffer that the unit at work arrived in stays beside the weights copied out of it.
        keeps: gathered blocks stay, where the layout keeps them, and the embedding.
        before: the embedding is there in any case.
        behind: as many copies of the head, which stays for other micro-batches in flight too.
    """
    work, inventory = scene.work, scene.part.inventory
    if not work.sharded:
        return 0
    layout, most = work.execution.layout, max(1, scene.part.inventory.num_blocks)
    root, block = inventory.root.gathered_bytes(work.types), inventory.block.gathered_bytes(work.types)
    embedding, head = (end.gathered_bytes(work.types) for end in inventory.ends)
    stays = keeps and not layout.reshard_after_forward
    copies = max(behind, int(scene.flight.heads > 1 or work.execution.postpones_reduction))
    root += (copies - 1) * head - (0 if before or stays else embedding)
    if stays:
        buffer = block * min(work.unit_blocks, most) if forward else 0
        return root + buffer + inventory.over_blocks(lambda unit: unit.gathered_bytes(work.types))
    ahead = units - 1 + layout.prefetch if units > 1 else units + forward
    return root + block * min(ahead * work.unit_blocks, most)


def let_go(scene: Scene) -> float:
    """Whole weights of the unit at work, which FSDP2 frees before it reduces what they gave (`post_backward`)."""
    work, inventory = scene.work, scene.part.inventory
    if not work.sharded or work.execution.postpones_reduction:
        return 0
    return min(work.unit_blocks, max(1, inventory.num_blocks)) * inventory.block.gathered_bytes(work.types)


def arriving(scene: Scene, *, forward: bool = False) -> float:
    """What is copied of a unit while it is gathered from other ranks: all of it by gloo, and what a rank sends, where
    that is cast. In backward nothing, where it stays from its forward on."""
    work, inventory = scene.work, scene.part.inventory
    layout = work.execution.layout
    if layout.weight_shards == 1 or not (forward or layout.reshard_after_forward):
        return 0
    unit = min(work.unit_blocks, max(1, inventory.num_blocks))
    copied = _copied(scene, unit * inventory.block.gathered_bytes(work.types))
    return copied + _sent(scene, unit * inventory.block.trained_elements)


def arriving_head(scene: Scene) -> float:
    """The same of the final norm and the head, where they are gathered behind the blocks."""
    if scene.work.execution.layout.weight_shards == 1:
        return 0
    head = scene.part.inventory.ends[1]
    return _copied(scene, head.gathered_bytes(scene.work.types)) + _sent(scene, head.trained_elements)


def _sent(scene: Scene, trained: int) -> float:
    """What a rank sends of so many trained elements, where these are cast."""
    types = scene.work.types
    return trained * types.compute / scene.work.execution.layout.weight_shards if types.autocasts else 0


def _copied(scene: Scene, gathered_bytes: float) -> float:
    """What gloo, which moves tensors between processors, makes a copy of while it gathers."""
    return gathered_bytes if scene.work.cluster.gpu.kind == "cpu" else 0


def in_reduction(scene: Scene, *, whole: int, behind: int, fresh: int = 0) -> float:
    """So many elements of whole gradients, which wait in the compute type until all of their unit are there, and the
    float32 buffer of the unit behind it; `fresh`: those of them that have just been made."""
    if not scene.work.sharded:
        return 0
    waiting = fresh if adds_in_place(scene) else whole
    buffer = behind if scene.turn in (None, "last") else 0
    return waiting * scene.work.types.compute + buffer * REDUCTION_BYTES


def leaving(scene: Scene, whole: int) -> float:
    """Elements of whole gradients as they are copied into the float32 buffer that is reduced, or while it is."""
    if not scene.work.sharded:
        return 0
    buffer = whole * REDUCTION_BYTES
    several = scene.work.execution.layout.weight_shards > 1
    copied = _copied(scene, buffer) if several else 0
    if scene.turn is not None:
        return passes(scene, whole, largest=scene.part.inventory.block.largest_trained, copied=copied)
    shard = buffer / weight_degree(scene.work.execution.layout) if several else 0
    return buffer + max(whole * scene.work.types.compute, copied + shard)


def leaving_head(scene: Scene) -> float:
    """As they leave, gradients of the final norm and the head: beside the buffer the one that the loss gave stays, and
    this rank's part of the sum comes."""
    work, unit = scene.work, scene.part.inventory.ends[1]
    whole, given = unit.trained_elements, unit.trained_elements * work.types.compute
    buffer, several = whole * REDUCTION_BYTES, work.execution.layout.weight_shards > 1
    copied = _copied(scene, buffer) if several else 0
    if scene.turn is not None:
        largest = unit.largest_trained  # the head's, which is the last
        return max(given, passes(scene, whole, largest=largest, copied=copied, last=largest))
    return given + buffer + (buffer / weight_degree(work.execution.layout) + copied if several else 0)


def leaving_root(scene: Scene) -> float:
    """As they leave, gradients of the embedding and what else lies before the blocks: whole ones in the compute type,
    copied into the float32 buffer that is reduced; a tied head's wait to be added to them."""
    work, root = scene.work, scene.part.inventory.root
    whole = root.trained_elements - scene.part.inventory.ends[1].trained_elements
    made = whole * work.types.compute
    if not work.sharded or work.execution.postpones_reduction:
        return made + whole * REDUCTION_BYTES
    copied = _copied(scene, whole * REDUCTION_BYTES) if work.execution.layout.weight_shards > 1 else 0
    both = made + whole_head_gradient(scene) if scene.part.inventory.tied else made
    largest = root.largest_trained
    return max(both, passes(scene, whole, largest=largest, copied=copied, last=largest))


def head_gradient(scene: Scene) -> float:
    """The head's gradient in storage."""
    return scene.part.trained_head * scene.work.types.trainable


def made_head_gradient(scene: Scene) -> float:
    """The head's gradient as the loss makes it, in the type of the products."""
    return scene.part.trained_head * scene.work.types.compute


def whole_head_gradient(scene: Scene) -> float:
    """Under sharding, a gradient waits whole, in the compute type, until all of its unit are there."""
    return made_head_gradient(scene) if scene.work.sharded else 0


def fresh_gradient(work: Work, elements: int) -> float:
    """The gradient of one weight before it is accumulated; autocast adds the one in the compute type."""
    if work.sharded:
        return 0
    return elements * (work.types.trainable + (work.types.compute if work.setting.casts else 0))


def logits(scene: Scene, *, powers: bool = True) -> float:
    """A chunk's logits, and their `powers` in float32, which a CPU casts once more on the way, and a compiled softmax
    does not store; of heads that cap or scale logits also the two copies that autograd keeps."""
    work, c = scene.work, scene.work.types.compute
    stored = powers and c != FLOAT32_BYTES and not work.execution.compile
    wide = FLOAT32_BYTES * (1 if work.setting.cuda else 2) if stored else 0
    return work.head_tokens * work.head_slice * (c + wide + (0 if work.model.plain_head else 2 * c))


def in_loss(scene: Scene) -> tuple[float, float]:
    """Logits, and the head's gradient, when most is alive of the last chunk: in its softmax, beside the gradient of the
    chunks before it; or when its own gradients are made, the logits' in their place."""
    work, made = scene.work, made_head_gradient(scene)
    given = work.head_tokens * work.model.hidden_size * work.types.compute
    copied = given if work.head_positions < work.tokens else 0  # of positions that are chosen
    softmax, before = logits(scene) + copied, made if work.head_tokens < work.head_positions else 0.0
    behind = logits(scene, powers=False) + given + copied
    return (softmax, before) if softmax + before >= behind + made else (behind, made)


def head_cast(scene: Scene) -> float:
    """The head's weight in the compute type, where it is stored in float32: cast once in each loss, or step."""
    return 0 if scene.work.execution.keeps_casts and scene.part.trained_head else _head_cast(scene)


def _head_cast(scene: Scene) -> float:
    work = scene.work
    wide = work.setting.casts and scene.part.trained_head
    return scene.part.head_elements * work.types.compute if wide else 0


def flat_gradients(scene: Scene) -> float:
    """The buffer in which gradients are summed over replicas after the last backward, where DDP and FSDP do not."""
    work = scene.work
    layout = work.execution.layout
    if work.sharded or work.replicated or layout.data_world_size * layout.cp * layout.tp == 1:
        return 0
    return min(scene.holding.gradients, max(FLAT_BYTES, scene.part.largest_trained * work.types.trainable))


def exchanged_rows(scene: Scene) -> float:
    """ZeRO-1's buffers for a message of new weights: everyone's rows, and this rank's own."""
    layout, part = scene.work.execution.layout, scene.part
    if not layout.shards_states_only:
        return 0
    whole = part.inventory.trained_elements * scene.work.types.trainable
    message = min(FLAT_BYTES, whole)
    return message * (1 + 1 / layout.dp_shard) + _copied(scene, message)


def step_temporaries(scene: Scene) -> float:
    """What an optimizer's step needs beside its states.

    AdamW over lists (`foreach`) holds the roots of all second moments at once (`torch.optim.adamw`,
    `_multi_tensor_adamw`). SGD adds weight decay to copies of the gradients, on a GPU of all of them. Adafactor makes
    one tensor's update at a time.
    """
    work, held = scene.work, scene.holding.gradients
    if work.execution.optimizer_on_host and work.setting.cuda:
        return 0
    largest = scene.part.largest_trained * work.types.trainable
    match work.execution.optimizer:
        case "adamw_foreach":
            return held
        case "sgd" if work.job.train.weight_decay:
            return held if work.setting.cuda else min(held, largest)
        case "adafactor":
            return min(held, largest)
        case _:
            return 0
