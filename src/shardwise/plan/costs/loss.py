"""Final norm, head and loss: logits, the head's gradient on its way, what both keep; seconds."""

from shardwise.plan.costs.autocast import weight_bytes
from shardwise.plan.costs.piece import RankTime, launched
from shardwise.plan.rates import Device, group_of
from shardwise.plan.work import FLOAT32_BYTES, Scene, Work

_OPERATORS_PER_LOSS = 20
#: Float32 logits go through memory this often: largest, shifted, raised, summed, made gradients.
_LOGIT_PASSES = 8
#: One compiled kernel reads them thrice in the compute type, and writes their gradients.
_COMPILED_LOGIT_PASSES = 4


def saved_by_head(scene: Scene) -> float:
    """What the final norm saves; the gradient of the head's input, made by the loss in forward."""
    return scene.work.tokens * scene.work.of_block.final_norm + head_input(scene)


def head_input(scene: Scene) -> float:
    """What the final norm gives."""
    return scene.work.tokens * scene.work.model.hidden_size * scene.work.types.compute


def head_gradient(scene: Scene) -> float:
    """The head's gradient in storage."""
    return scene.part.trained_head * scene.work.types.trainable


def made_head_gradient(scene: Scene) -> float:
    """The head's gradient as the loss makes it, in the type of the products."""
    return scene.part.trained_head * scene.work.types.compute


def unsharded_head_gradient(scene: Scene) -> float:
    """Under sharding, an unsharded gradient waits, in the compute type, for all of its unit."""
    return made_head_gradient(scene) if scene.work.sharded else 0


def logits(scene: Scene, *, powers: bool = True) -> float:
    """A chunk's logits, and their `powers` in float32, which a CPU casts once more, and a compiled
    softmax does not store; or what is made for gradients behind heads that cap or scale logits. A
    cap keeps its tangents for that."""
    work, c = scene.work, scene.work.types.compute
    copies = int(work.model.caps_logits) + (0 if powers or work.model.plain_head else 1 + work.model.caps_logits)
    stored = powers and c != FLOAT32_BYTES and not work.execution.compile
    wide = FLOAT32_BYTES * (1 if work.setting.cuda else 2) if stored else 0
    return work.head_tokens * work.head_slice * (c + wide + copies * c)


def in_loss(scene: Scene) -> tuple[float, float]:
    """Logits, and the head's gradient, when most is alive of the last chunk: in its softmax, beside
    gradients of chunks before it; or when its own are made, the logits' in their place."""
    work, made = scene.work, made_head_gradient(scene)
    given = work.head_tokens * work.model.hidden_size * work.types.compute
    copied = given if work.head_positions < work.tokens else 0  # of positions that are chosen
    softmax, before = logits(scene) + copied, made if work.head_tokens < work.head_positions else 0.0
    behind = logits(scene, powers=False) + given + copied
    return (softmax, before) if softmax + before >= behind + made else (behind, made)


def head_and_loss(work: Work, device: Device) -> RankTime:
    """Head and loss, both ways: two or three products and passes over logits, chunk by chunk."""
    layout = work.execution.layout
    sliced, width = work.head_slice, work.model.embedding_width
    at_once = min(work.tokens, work.head_tokens)
    chunks = work.tokens / at_once
    products = 2 * device.product(at_once, work.model.vocab_size / layout.tp, width)
    if work.inventory.trained(work.inventory.head_name):
        products += device.product(work.model.vocab_size / layout.tp, width, at_once)
        products += device.bytes_moved(sum(weight_bytes(work, sliced * width))) / chunks
    compute, compiled = work.types.compute, work.execution.compile
    passed = _COMPILED_LOGIT_PASSES * compute if compiled else _LOGIT_PASSES * FLOAT32_BYTES
    passes = device.bytes_moved(at_once * sliced * passed)
    group = group_of(work.cluster, layout, "tp")
    if work.model.plain_head:  # the largest logit of each position, then a sum and the label's logit
        talking = sum(group.all_reduce(at_once * count * FLOAT32_BYTES) for count in (1, 2))
    else:
        talking = group.gather(at_once * sliced * work.types.compute)
    operators, seconds = _OPERATORS_PER_LOSS * chunks, chunks * (products + passes)
    return launched(work, seconds, operators=operators, talking=chunks * talking)
