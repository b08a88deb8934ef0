"""FSDP2: weights gathered by unit, unsharded gradients that wait and leave, seconds of both.

With `Execution.reduce_once` unsharded gradients are added up, in the type of the reduction, until
the last micro-batch's backward, which reduces them unit by unit. What is alive when is read from
torch 2.11's FSDP2 (`_fsdp_param_group.post_backward`, and in `_fsdp_param`
`to_accumulated_grad_if_needed` and `accumulate_unsharded_grad_if_needed`).
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.plan.costs.offload import fetch_seconds, fetches_ahead, over_the_bus
from shardwise.plan.costs.piece import MessageTime, device_of
from shardwise.plan.rates import group_of
from shardwise.plan.work import REDUCTION_BYTES, Outer, Scene, Unit, Work
from shardwise.spec.layout.axes import stages_per_rank

#: FSDP2's hooks around one unit: the host's time, and passes over the unit's bytes to copy it out
#: of the gathered buffer, or its gradients into the one to be reduced.
HOST_SECONDS_PER_UNIT = 250e-6
COPY_PASSES = 2
_NOTHING = Unit(tensors=())


def unsharded_weights(
    scene: Scene, *, units: int, forward: bool = False, keeps: bool = True, before: bool = False, behind: int = 0
) -> float:
    """Unsharded weights: the root, the unit at work and those ahead, or (ZeRO-2) every block.

    `units`: 0 for the root alone, 1 with the unit at work, 2 with those gathered ahead of it;
    `forward`: the buffer that the unit at work arrived in stays beside the weights copied out of
    it; `keeps`: gathered blocks stay, where the layout keeps them, and the embedding; `before`: the
    embedding is there in any case; `behind`: as many copies of the head, which stays for other
    micro-batches in flight too."""
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


def reduce_scatter_buffers(scene: Scene, *, unsharded: int, behind: int, fresh: int = 0) -> float:
    """So many elements of unsharded gradients, waiting in the compute type for all of their unit,
    and the float32 buffer of the unit behind it; `fresh`: those that have just been made."""
    if not scene.work.sharded:
        return 0
    waiting = fresh if adds_in_place(scene) else unsharded
    return waiting * scene.work.types.compute + (behind if scene.turn in (None, "last") else 0) * REDUCTION_BYTES


def all_gather_input(scene: Scene) -> float:
    """Shards of the next unit's trained weights, cast to be gathered; and gloo's copy of all."""
    work, layout = scene.work, scene.work.execution.layout
    if layout.weight_shards == 1 or not layout.reshard_after_forward:
        return 0
    block, blocks = scene.part.inventory.block, min(work.unit_blocks, max(1, scene.part.inventory.num_blocks))
    cast = block.trained_elements * work.types.compute / layout.weight_shards if work.types.autocasts else 0
    return blocks * (cast + block.gathered_bytes(work.types) * (not work.setting.cuda))


def reduce_scatter_copy(scene: Scene, unsharded: int, *, freed: float = 0) -> float:
    """So many elements of a unit's unsharded gradients as they are copied into the float32 buffer
    that is reduced, less the unit's weights, which FSDP2 has freed by then (`post_backward`)."""
    work = scene.work
    if not work.sharded:
        return 0
    made, buffer = unsharded * work.types.compute, unsharded * REDUCTION_BYTES
    return (made + buffer if scene.turn is None else max(made, buffer)) - freed


def unsharded_unit(scene: Scene) -> float:
    """Bytes of a unit of blocks as it is gathered, freed behind its backward."""
    work, inventory = scene.work, scene.part.inventory
    return min(work.unit_blocks, max(1, inventory.num_blocks)) * inventory.block.gathered_bytes(work.types)


def num_units(work: Work, blocks: int) -> int:
    """Units that so many blocks of a stage are gathered in."""
    return -(-blocks // work.unit_blocks)


def copies_of_unit(work: Work) -> tuple[float, float, float]:
    """Copying weights from the gathered buffer, gradients into the reduced one; the host's time."""
    device, tp = device_of(work), work.execution.layout.tp
    copy_out = device.bytes_moved(COPY_PASSES * work.mean(lambda unit: unit.gathered_bytes(work.types)) / tp)
    copy_in = device.bytes_moved(COPY_PASSES * work.trained_of_mean * REDUCTION_BYTES / tp)
    gpu = work.cluster.gpu
    return copy_out, copy_in, gpu.unit_seconds / 2 if gpu.kind == "cpu" else HOST_SECONDS_PER_UNIT


def sharded_messages(work: Work, *, outer: Outer, blocks: float = 1.0, last: bool = True) -> MessageTime:
    """What FSDP sends for a micro-batch with units of so many blocks: weights gathered in the
    compute type, gradients reduced in float32; `outer` is what the stage holds beside its blocks.
    Some are sent in the `last` alone."""
    layout, execution = work.execution.layout, work.execution
    embedding, head, rest = outer.embedding, outer.head, outer.rest
    if not fetches_ahead(work):
        head, rest = _NOTHING, outer.whole
    shard, replicate = (group_of(work.cluster, layout, *axes) for axes in (layout.shards_over, layout.copied_over))

    def gather(unit: Unit, count: float = blocks) -> float:
        return shard.gather(count * unit.gathered_bytes(work.types) / layout.tp)

    def reduce(unit: Unit, count: float = blocks) -> float:
        if execution.reduce_once and not last:
            return 0.0
        held = count * unit.trained_elements * REDUCTION_BYTES / layout.tp
        return (
            shard.scatter(held)
            + (replicate.all_reduce(held / shard.size) if last or not execution.adds_replicas_once else 0.0)
            + count * over_the_bus(work, unit.trained_elements * work.types.trainable)
        )

    ahead = work.mean(gather)
    if fetches_ahead(work):
        ahead += blocks * work.mean(lambda unit: fetch_seconds(work, unit))
    return MessageTime(
        gather=ahead,
        again=ahead if layout.reshard_after_forward else 0.0,
        reduce=work.mean(reduce),
        outer_gather=gather(rest, 1) + fetch_seconds(work, rest),
        outer_reduce=reduce(rest, 1),
        outer_again=gather(embedding, 1) if embedding.trained_elements and layout.reshard_after_forward else 0.0,
        head_gather=gather(head, 1) + fetch_seconds(work, head),
        head_reduce=reduce(head, 1),
    )


def turns(scene: Scene) -> Iterator[Scene]:
    """The scene of each backward that its flight may stand for. Of a rank with several stages,
    whose last backwards differ in time, all gradients are taken to be unsharded throughout."""
    execution, flight = scene.work.execution, scene.flight
    if not execution.reduce_once or stages_per_rank(execution.layout.schedule) > 1:
        yield scene
    elif not flight.gradients:
        yield replace(scene, turn="first")
    else:
        if execution.gradient_accumulation_steps > 2:
            yield replace(scene, turn="between")
        alone = replace(flight, pairs=1, heads=1, forwards=flight.forwards and flight.pairs == 1)
        yield replace(scene, flight=alone, turn="last")


def kept_gradients(scene: Scene, *, passed: int) -> float:
    """Bytes of gradients once a backward has passed units of so many trained elements."""
    every = scene.part.inventory.trained_elements
    match scene.turn:
        case "first":
            return passed * REDUCTION_BYTES
        case "last":
            shards = scene.holding.gradients * passed / max(1, every)
            return (every - passed) * REDUCTION_BYTES + shards
        case _:
            return every * REDUCTION_BYTES


def adds_in_place(scene: Scene) -> bool:
    """Whether a weight's gradient is added to the unsharded one once made, waiting for no other."""
    return scene.turn in ("between", "last") and scene.work.types.compute == REDUCTION_BYTES
