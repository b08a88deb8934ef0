"""A block's backward, in the moments of it that may be the fullest: what is saved is freed on the
way, and does not add up with weights made to be used and with gradients."""

from collections.abc import Iterator

from shardwise.plan.costs.autocast import fresh_gradient, weight_casts
from shardwise.plan.costs.context import all_gathered_keys
from shardwise.plan.costs.fsdp import all_gather_input, reduce_scatter_buffers, reduce_scatter_copy, unsharded_unit
from shardwise.plan.costs.recompute import of_one_block, shared
from shardwise.plan.work import Alive, Scene
from shardwise.spec.model.profile import ModelProfile


def backward_of_block(scene: Scene, *, behind: int) -> Alive:
    """The fullest moment of any block's backward, while as much of the next unit is reduced."""
    if scene.work.profile:
        moments = _profiled(scene, scene.work.profile, behind)
    elif scene.work.setting.tiled:
        moments = _tiled(scene, behind)
    else:
        moments = _compiled(scene, behind) if scene.work.execution.compile else _moments(scene, behind)
    return max(moments, key=lambda alive: sum(alive.values()))


def _profiled(scene: Scene, profile: ModelProfile, behind: int) -> Iterator[Alive]:
    """Of a measured block: gradients gather, or each is added to earlier micro-batches'."""
    work, others = scene.work, _of_other_blocks(scene)
    casts = weight_casts(scene, blocks=1)
    begun = work.tokens * (work.of_block.saved + 2 * work.of_block.stream) + shared(scene)
    before = reduce_scatter_buffers(scene, unsharded=others, behind=behind)
    yield {"activations": begun, "temporary": casts, "communication": before + all_gather_input(scene)}
    for moment in (moment for block in profile.blocks for moment in block.backward):
        kept = 0 if work.sharded or scene.whole else (moment.gradients - moment.fresh) * work.types.trainable
        made = others + moment.gradients
        yield {
            "activations": work.profiled(moment.alive) + work.tokens * work.of_block.stream + shared(scene),
            "temporary": casts + fresh_gradient(work, moment.fresh),
            "communication": reduce_scatter_buffers(scene, unsharded=made, behind=behind, fresh=moment.fresh),
            "gradients": kept,
        }
    yield _end(scene)


def _tiled(scene: Scene, behind: int) -> Iterator[Alive]:
    """Of a block that is computed again but for its MLP, which then comes tile by tile: the sums of
    its weights' gradients stand beside those of one tile."""
    work, of, others = scene.work, scene.work.of_block, _of_other_blocks(scene)
    casts, of_mlp = weight_casts(scene, blocks=1), _trained_of_mlp(scene)[1]
    begun = work.tokens * (of.saved + of.stream) + shared(scene)
    before = reduce_scatter_buffers(scene, unsharded=others, behind=behind)
    yield {"activations": begun, "temporary": casts, "communication": before + all_gather_input(scene)}
    saved, sums = of_one_block(scene), 0 if work.sharded else of_mlp * work.types.trainable
    made = reduce_scatter_buffers(scene, unsharded=others + of_mlp, behind=behind, fresh=of_mlp)
    yield {
        "activations": saved + work.tokens * of.stream + work.mlp_tokens * of.tile[1] + work.tokens * of.norm_backward,
        "temporary": casts + of.computed_weights + sums + of_mlp * work.types.compute,
        "communication": made,
    }
    yield {
        "activations": saved + work.tokens * (of.attention_backward - of.saved_by_mlp),
        "temporary": casts + sums,
        "communication": made + all_gathered_keys(scene),
    }
    yield _end(scene)


def _compiled(scene: Scene, behind: int) -> Iterator[Alive]:
    """Of a compiled block: kernels are fused, and gradients handed over together at its end."""
    work = scene.work
    casts, recompute = weight_casts(scene, blocks=1), work.execution.recompute
    begun = work.tokens * (work.of_block.saved + work.of_block.gradients[0]) + shared(scene)
    saved = begun if recompute == "none" else of_one_block(scene)
    # What is made again of attention comes later, unless the MLP reads it.
    later = recompute == "selective" or (recompute != "none" and work.block.parallel_residual)
    without = saved - work.tokens * work.of_block.saved_by_mlp
    inside = begun if later else without
    others, of_mlp = _of_other_blocks(scene), _trained_of_mlp(scene)[1]
    before = reduce_scatter_buffers(scene, unsharded=others, behind=behind)
    yield {"activations": inside + work.tokens * work.of_block.fused_mlp, "temporary": casts, "communication": before}
    yield {
        "activations": without + work.tokens * work.of_block.compiled_attention,
        "temporary": casts + (0 if work.sharded else of_mlp * work.types.compute),
        "communication": reduce_scatter_buffers(scene, unsharded=others + of_mlp, behind=behind, fresh=of_mlp)
        + all_gathered_keys(scene),
    }
    # Where rows are few, inductor delays gradients until the last kernel, which casts all of them.
    own = scene.part.inventory.block.trained_elements
    end = _end(scene) | {"temporary": fresh_gradient(work, own)}
    yield end
    yield end | {"communication": reduce_scatter_buffers(scene, unsharded=others + own, behind=behind, fresh=own)}


def _moments(scene: Scene, behind: int) -> Iterator[Alive]:
    work, of, largest = scene.work, scene.work.of_block, scene.part.inventory.block.largest_trained
    tokens, casts, others = work.tokens, weight_casts(scene, blocks=1), _of_other_blocks(scene)
    last, all_of_mlp = _trained_of_mlp(scene)
    stream, product, inside = of.gradients
    saved, before = of_one_block(scene), reduce_scatter_buffers(scene, unsharded=others, behind=behind)
    # A block that is computed again has not been yet, as the next one's weights arrive.
    begun = saved if work.execution.recompute == "none" else tokens * (of.saved + stream) + shared(scene)
    yield {"activations": begun, "temporary": casts, "communication": before + all_gather_input(scene)}
    end = tokens * max(of.norm_backward, of.routed[1])
    yield {"activations": saved + end, "temporary": casts, "communication": before}
    made = of.computed_weights + of.remade_backward
    with_last = reduce_scatter_buffers(scene, unsharded=others + last, behind=behind, fresh=last)
    yield {
        "activations": saved + tokens * product,
        "temporary": casts + fresh_gradient(work, last) + made,
        "communication": with_last,
    }
    # The last of the MLP's gradients is made: what it saved is gone.
    of_mlp = reduce_scatter_buffers(scene, unsharded=others + all_of_mlp, behind=behind, fresh=largest)
    yield {
        "activations": saved - tokens * of.saved_by_mlp,
        "temporary": casts + fresh_gradient(work, largest) + made,
        "communication": of_mlp,
    }
    # In the first micro-batch a gradient stays as it is made; later ones are added to it.
    kept = 0 if work.sharded or scene.whole else of.last_matrix * work.types.trainable
    yield {"activations": saved + tokens * inside, "temporary": casts, "communication": with_last, "gradients": kept}
    # Under cp attention's backward gathers keys and values once more.
    if keys := all_gathered_keys(scene):
        at_attention = saved + tokens * (of.attention_backward - of.saved_by_mlp)
        yield {"activations": at_attention, "temporary": casts, "communication": of_mlp + keys}
    yield _end(scene)


def _end(scene: Scene) -> Alive:
    """All of the block's gradients are made, and leave."""
    work, own = scene.work, scene.part.inventory.block.trained_elements
    return {
        "activations": work.tokens * work.of_block.gradients[0] + shared(scene),
        "temporary": 0,
        "communication": reduce_scatter_copy(scene, _of_other_blocks(scene) + own, freed=unsharded_unit(scene)),
    }


def _of_other_blocks(scene: Scene) -> int:
    """Elements of unsharded gradients of its unit's other blocks, which wait for the block's."""
    return (scene.work.unit_blocks - 1) * scene.part.inventory.block.trained_elements


def _trained_of_mlp(scene: Scene) -> tuple[int, int]:
    """Elements of gradients that an MLP makes: the largest that reads its product, and all."""
    kinds, block = scene.work.block.kinds, scene.part.inventory.block

    def of(reads: tuple[str, ...]) -> tuple[int, int]:
        return block.trained_of(frozenset(m.name for kind in kinds for m in kind.matrices if m.reads.startswith(reads)))

    product = "mlp_product", "expert_product"
    return scene.work.once("gradients of the MLP", lambda: (of(product)[0], of(("mlp", "expert"))[1]), block)
