"""A block's backward, in the moments of it that may be the fullest. What is saved is let go on the way, so that weights
that arrive, one that is made to be used, the gradients inside the MLP and whole ones that leave do not add up."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.plan.costs.autocast import fresh_gradient, weight_casts
from shardwise.plan.costs.block import of_one_block, shared
from shardwise.plan.costs.context import keys_of_others
from shardwise.plan.costs.fsdp import arriving, in_reduction, leaving, let_go
from shardwise.plan.work import Alive, Scene, Work, score_bytes


def backward_of_block(scene: Scene, *, behind: int, comes: bool, stays: float = 0) -> Alive:
    """The fullest moment of any block's backward, while as many elements of the unit behind it are reduced; `comes`:
    another unit is gathered meanwhile; `stays`: bytes of the gradient of what it gave that are not let go with it."""
    compiled = scene.work.execution.compile
    moments = _compiled(scene, behind, comes, stays) if compiled else _moments(scene, behind, comes)
    return max(moments, key=lambda alive: sum(alive.values()))


def _compiled(scene: Scene, behind: int, comes: bool, stays: float) -> Iterator[Alive]:
    """Of a compiled block: kernels are fused, and gradients are handed over together when it ends."""
    work, block = scene.work, scene.part.inventory.block
    tokens, casts, stream = work.tokens, weight_casts(scene, blocks=1), work.block_backward[0]
    last, of_mlp = _trained_of_mlp(scene)
    recompute = work.execution.recompute
    others = (work.unit_blocks - 1) * block.trained_elements
    begun = tokens * (work.saved + stream) + shared(scene)
    saved = begun if recompute == "none" else of_one_block(scene)
    arrives = arriving(scene) if comes else 0
    yield {
        "activations": begun,
        "temporary": casts,
        "communication": in_reduction(scene, whole=others, behind=behind) + arrives,
    }
    without = saved - tokens * work.saved_by_mlp
    # What is made again of attention comes later, unless the MLP reads it.
    later = recompute == "selective" or (recompute != "none" and work.block.parallel_residual)
    # The kernel that makes the MLP's gradients also makes its product again, without which the last matrix has none.
    fresh = last if recompute == "none" else 0
    yield {
        "activations": (begun if later else without) + tokens * work.fused_mlp,
        "temporary": casts - _cast(work, last) + _made(work, fresh),
        "communication": in_reduction(scene, whole=others + fresh, behind=behind, fresh=fresh),
    }
    yield {
        "activations": without + tokens * work.compiled_attention,
        "temporary": casts - _cast(work, of_mlp) + _made(work, of_mlp),
        "communication": in_reduction(scene, whole=others + of_mlp, behind=behind, fresh=of_mlp)
        + keys_of_others(scene)
        + stays,
    }
    own = others + block.trained_elements
    made = in_reduction(scene, whole=own, behind=behind, fresh=block.trained_elements) + stays
    yield {
        "activations": tokens * work.compiled_end + shared(scene),
        "temporary": _made(work, block.trained_elements),
        "communication": made,
    }
    # Where rows are few, inductor puts gradients off until the last kernel, which casts all of them.
    yield {
        "activations": tokens * stream + shared(scene),
        "temporary": _cast(work, block.trained_elements) + _made(work, block.trained_elements),
        "communication": max(made, leaving(scene, own) - let_go(scene)),
    }


def _cast(work: Work, elements: int) -> float:
    """Copies of so many trained elements, or of their gradients, in the compute type."""
    return elements * work.types.compute if work.setting.casts else 0


def _made(work: Work, elements: int) -> float:
    """Gradients that are not handed over yet, where they do not wait in another unit's sum."""
    return 0 if work.sharded else elements * work.types.trainable


def _moments(scene: Scene, behind: int, comes: bool) -> Iterator[Alive]:
    work, block = scene.work, scene.part.inventory.block
    tokens, casts, last, of_mlp = work.tokens, weight_casts(scene, blocks=1), *_trained_of_mlp(scene)
    stream, product, inside = work.block_backward
    # What a block ends with: a norm, or the mean over experts.
    saved, end = of_one_block(scene), tokens * max(work.norm_backward, work.routed[1])
    # Where a block is computed again before its backward, the next one has come by the time that is done.
    recomputed = work.execution.recompute != "none"
    begun = tokens * (work.saved + stream) + shared(scene) if recomputed else saved
    # Of the other blocks of its unit gradients wait whole.
    others = (work.unit_blocks - 1) * block.trained_elements
    before = in_reduction(scene, whole=others, behind=behind)
    # Where no forward has told an order to gather ahead by, it is the block's own weights that arrive.
    arrives = arriving(scene) if comes or not scene.flight.forwards else 0
    yield {"activations": begun, "temporary": casts, "communication": before + arrives}
    yield {"activations": saved + end, "temporary": casts, "communication": before}
    if work.again_at_adapter:
        yield {
            "activations": saved + tokens * work.again_at_adapter,
            "temporary": casts + work.computed_weights,
            "communication": before,
        }
    yield {
        "activations": saved + tokens * product,
        "temporary": casts + fresh_gradient(work, last) + work.computed_weights + work.remade_backward,
        "communication": in_reduction(scene, whole=others + last, behind=behind, fresh=last),
    }
    after = in_reduction(scene, whole=others + last, behind=behind)
    kept = 0 if work.sharded or scene.whole else work.last_matrix * work.types.trainable
    yield {"activations": saved + tokens * inside, "temporary": casts, "communication": after, "gradients": kept}
    without = saved - tokens * work.saved_by_mlp
    yield {
        "activations": without + tokens * work.mlp_begins,
        "temporary": casts + fresh_gradient(work, block.largest_trained) + work.computed_weights + work.remade_backward,
        "communication": in_reduction(scene, whole=others + of_mlp, behind=behind, fresh=block.largest_trained),
    }
    after = in_reduction(scene, whole=others + of_mlp, behind=behind)
    if keys := keys_of_others(scene):
        yield {"activations": without, "temporary": casts, "communication": after + keys}
    if work.setting.keeps_scores:
        scores = score_bytes(work.block, work.setting)
        yield {"activations": without + tokens * (stream + scores), "temporary": casts, "communication": after}
    yield {
        "activations": tokens * stream + shared(scene),
        "temporary": casts,
        "communication": leaving(scene, others + block.trained_elements) - let_go(scene),
    }


def _trained_of_mlp(scene: Scene) -> tuple[int, int]:
    """Elements of gradients that a block's MLP makes: the largest of what reads its product, and all."""
    kinds, block = scene.work.block.kinds, scene.part.inventory.block

    def of(reads: tuple[str, ...]) -> tuple[int, int]:
        return block.trained_of(frozenset(m.name for kind in kinds for m in kind.matrices if m.reads.startswith(reads)))

    product = "mlp_product", "expert_product"
    return scene.work.once("gradients of the MLP", lambda: (of(product)[0], of(("mlp", "expert"))[1]), block)
