"""What is alive at each named instant of a training step, part by part; the peak is the largest of them.

An instant is a function from (work, holding) to bytes by part. Parts follow `spec.plan.PARTS`; what lies outside the
allocator is added by the caller. The order of a step: forward, loss, backward from the last block to the first,
optimizer. With several micro-batches the last one is the fullest, because gradients are already there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardwise.plan.activations import backward_bytes, block_input_bytes, unsaved_by_first_block
from shardwise.plan.inventory import Unit
from shardwise.plan.persistent import Holding
from shardwise.plan.types import FLOAT32_BYTES, REDUCTION_BYTES
from shardwise.plan.work import Work

Alive = dict[str, float]

_INT64_BYTES = 8
#: Token ids, labels, positions and indices of trained positions, each an int64 per token.
_INPUT_TENSORS = 5
#: float32 copies of the logits alive in the loss's backward: log-probabilities, the gradient of the picked ones
#: scattered over all, and that of the logits.
_LOGIT_COPIES_BACKWARD = 3


def instants(work: Work, holding: Holding) -> Iterator[tuple[str, Alive]]:
    """Every named instant of a step with what is alive then."""
    last = work.model.num_layers - 1
    table: tuple[tuple[str, Callable[[Work, Holding], Alive]], ...] = (
        ("loading", _loading),
        (f"forward of layer {last}", _forward_of_last_block),
        ("end of forward", _end_of_forward),
        ("backward of the loss", _backward_of_loss),
        ("backward of the head", _backward_of_head),
        (f"backward of layer {last}", _backward_of_last_block),
        ("backward of layer 0", _backward_of_first_block),
        ("backward of the embedding", _backward_of_embedding),
        ("optimizer step", _optimizer_step),
    )
    for name, alive in table:
        yield name, alive(work, holding)


def _loading(_work: Work, holding: Holding) -> Alive:
    return {"weights": holding.weights, "communication": holding.padding}


def _optimizer_step(work: Work, holding: Holding) -> Alive:
    return _between(work, holding, gradients=holding.gradients)


def _between(work: Work, holding: Holding, *, gradients: float) -> Alive:
    """What is alive at every instant of a step, with so many bytes of gradients."""
    return {
        "weights": holding.weights,
        "gradients": gradients,
        "optimizer": holding.optimizer,
        "communication": holding.padding,
        "temporary": _INPUT_TENSORS * work.tokens * _INT64_BYTES,
    }


def _before_backward(work: Work, holding: Holding) -> Alive:
    whole = work.replicated or work.accumulates
    return _between(work, holding, gradients=holding.gradients if whole else 0)


def _forward_of_last_block(work: Work, holding: Holding) -> Alive:
    alive = _before_backward(work, holding)
    _add(alive, "activations", work.tokens * ((work.model.num_layers - 1) * work.saved + work.saved_whole))
    _add(alive, "activations", _shared(work))
    _add(alive, "temporary", _weight_casts(work, blocks=work.model.num_layers))
    # The buffer the unit arrived in and the weights copied out of it are alive together.
    _add(alive, "communication", _gathered(work, blocks_beside_kept=2))
    return alive


def _end_of_forward(work: Work, holding: Holding) -> Alive:
    alive = _before_backward(work, holding)
    _add(alive, "activations", _saved_by_all(work))
    _add(alive, "logits", _logits_forward(work))
    _add(alive, "temporary", _weight_casts(work, blocks=work.model.num_layers))
    _add(alive, "communication", _gathered(work, blocks_beside_kept=0))
    return alive


def _backward_of_loss(work: Work, holding: Holding) -> Alive:
    alive = _before_backward(work, holding)
    _add(alive, "activations", _saved_by_all(work))
    _add(alive, "logits", work.head_tokens * work.model.vocab_size * FLOAT32_BYTES * _LOGIT_COPIES_BACKWARD)
    _add(alive, "temporary", _kept_casts(work, blocks=work.model.num_layers))
    if work.chunked and work.tokens > work.head_tokens:
        _add(alive, "gradients", 0 if work.replicated or work.accumulates or work.sharded else _head_gradient(work))
        _add(alive, "communication", _whole_head_gradient(work))
    _add(alive, "communication", _gathered(work, blocks_beside_kept=0))
    return alive


def _backward_of_head(work: Work, holding: Holding) -> Alive:
    alive = _before_backward(work, holding)
    _add(alive, "activations", _saved_by_all(work) + work.tokens * work.model.hidden_size * work.types.compute)
    _add(alive, "logits", work.head_tokens * work.model.vocab_size * work.types.compute)
    _add(alive, "temporary", _kept_casts(work, blocks=work.model.num_layers))
    _add(alive, "communication", _gathered(work, blocks_beside_kept=0) + _whole_head_gradient(work))
    _grow(work, alive, _head_elements(work))
    return alive


def _backward_of_last_block(work: Work, holding: Holding) -> Alive:
    alive = _before_backward(work, holding)
    blocks = work.model.num_layers - 1
    _add(alive, "activations", _saved_by_blocks(work, blocks) + _of_one_block(work))
    _add(alive, "temporary", _kept_casts(work, blocks=blocks) + _weight_casts(work, blocks=1, head=False))
    _add(alive, "communication", _gathered(work, blocks_beside_kept=2) + _whole_head_gradient(work))
    _add(alive, "communication", _in_reduction(work, work.inventory.block))
    if not (work.sharded or work.replicated or work.accumulates):
        _add(alive, "gradients", _head_gradient(work))
    _grow(work, alive, work.inventory.block.largest_trained())
    return alive


def _backward_of_first_block(work: Work, holding: Holding) -> Alive:
    root = work.inventory.root.trained_elements * work.types.trainable
    gradients = holding.gradients
    if not (work.replicated or work.accumulates):
        gradients = max(0, holding.gradients - holding.block_gradients - (0 if work.sharded else root))
        gradients += 0 if work.sharded else _head_gradient(work)
    alive = _between(work, holding, gradients=gradients)
    _add(alive, "activations", _of_one_block(work))
    _add(alive, "temporary", _weight_casts(work, blocks=1, head=False))
    # Backward gathers one unit ahead; before the first block there is none, but its predecessor is being reduced.
    _add(alive, "communication", _gathered(work, blocks_beside_kept=1, keeps=False) + _whole_head_gradient(work))
    _add(alive, "communication", _in_reduction(work, work.inventory.block))
    _grow(work, alive, work.inventory.block.largest_trained())
    return alive


def _backward_of_embedding(work: Work, holding: Holding) -> Alive:
    root = work.inventory.root
    alive = _between(work, holding, gradients=holding.gradients)
    _add(alive, "activations", work.tokens * block_input_bytes(work.model, work.setting))
    if work.sharded:
        # Whole gradients of the root in the compute type, copied into the float32 buffer that is reduced.
        whole = root.trained_elements
        _add(alive, "communication", whole * (work.types.compute + REDUCTION_BYTES))
    elif work.inventory.trained("embedding"):
        # A dense gradient of the table; a tied head's waits to be added to it.
        copies = 2 if work.model.tied else 1
        existing = not (work.replicated or work.accumulates)
        width = work.types.compute if work.setting.casts and work.model.tied else work.types.trainable
        fresh = work.model.embedding_parameters * width
        _add(alive, "temporary", (copies - 1 if existing else copies) * fresh)
    return alive


def _add(alive: Alive, part: str, count: float) -> None:
    alive[part] = alive.get(part, 0) + count


def _saved_by_blocks(work: Work, blocks: int) -> float:
    saved = blocks * work.saved
    if work.execution.gradient_checkpointing == "none":
        saved -= unsaved_by_first_block(work.model, work.setting)
    return work.tokens * saved + _shared(work)


def _saved_by_all(work: Work) -> float:
    """Blocks, final norm and the head's input."""
    width, c = work.model.hidden_size, work.types.compute
    norm = FLOAT32_BYTES + (c if work.inventory.trained("final_norm") else 0)
    head = c if work.inventory.trained("head") or (work.model.tied and work.inventory.trained("embedding")) else 0
    copied = c if work.chunked else 0
    return _saved_by_blocks(work, work.model.num_layers) + work.tokens * width * (norm + head + copied)


def _shared(work: Work) -> float:
    """What all blocks share: rotary tables, and the mask where attention has one."""
    model, length = work.model, work.job.data.max_length
    rotary = 0 if model.position_parameters else 2 * model.head_dim * work.types.compute * length
    # A boolean mask for each sequence; PyTorch's kernels read it as numbers of the compute type.
    mask = work.execution.micro_batch_size * length * length * (1 + work.types.compute) if work.setting.masked else 0
    return rotary + mask


def _of_one_block(work: Work) -> float:
    """A block in its backward: all it needs, saved or computed again, and the gradients inside it."""
    block_input = 0.0
    if work.execution.gradient_checkpointing != "none":
        block_input = block_input_bytes(work.model, work.setting)
    return work.tokens * (work.saved_whole + block_input + backward_bytes(work.model, work.setting)) + _shared(work)


def _logits_forward(work: Work) -> float:
    """Logits of all and of the trained positions, their float32 copy, and the log-probabilities, alive in the loss."""
    c = work.types.compute
    copies = (c if work.chunked else 2 * c) + (0 if c == FLOAT32_BYTES else FLOAT32_BYTES) + FLOAT32_BYTES
    return work.head_tokens * work.model.vocab_size * copies


def _head_elements(work: Work) -> int:
    """Elements of the head's weight where it is trained (a tied head's is the embedding's)."""
    trained = work.inventory.trained("embedding" if work.model.tied else "head")
    return work.model.embedding_parameters if trained else 0


def _head_gradient(work: Work) -> float:
    return _head_elements(work) * work.types.trainable


def _whole_head_gradient(work: Work) -> float:
    """Under sharding, the root's gradients stay whole, in the compute type, until its own reduction at the end."""
    return _head_elements(work) * work.types.compute if work.sharded else 0


def _grow(work: Work, alive: Alive, elements: int) -> None:
    """The gradient of one weight, before it is added to what has accumulated or copied into its bucket.

    Where nothing has accumulated yet the fresh gradient itself is kept; autocast adds the one in the compute type.
    """
    if work.sharded:
        return
    cast = work.types.compute if work.setting.casts else 0
    _add(alive, "temporary", elements * (work.types.trainable + cast))


def _weight_casts(work: Work, *, blocks: int, head: bool = True) -> float:
    """Copies of trained matrices in the compute type, which autocast makes at first use and keeps."""
    if not work.setting.casts:
        return 0
    matrices = _trained_matrices(work.inventory.block)
    if blocks > 1:
        matrices = work.inventory.over_blocks(_trained_matrices) / work.model.num_layers
    return (blocks * matrices + (_head_elements(work) if head else 0)) * work.types.compute


def _trained_matrices(unit: Unit) -> float:
    return sum(t.elements for t in unit.tensors if t.trained and t.columns > 1)


def _kept_casts(work: Work, *, blocks: int) -> float:
    """Those that outlive the forward, because a backward needs them: not where blocks are computed again."""
    return _weight_casts(work, blocks=blocks if work.execution.gradient_checkpointing == "none" else 0)


def _gathered(work: Work, *, blocks_beside_kept: int, keeps: bool = True) -> float:
    """Whole weights under sharding: the root all the time, the unit at work and the next, or (ZeRO-2) every block."""
    if not work.sharded:
        return 0
    kept = work.model.num_layers if keeps and not work.execution.layout.reshard_after_forward else 0
    blocks = blocks_beside_kept * work.inventory.block.elements
    if kept:
        blocks = work.inventory.elements - work.inventory.root.elements + work.inventory.block.elements
    return (blocks + work.inventory.root.elements) * work.types.compute


def _in_reduction(work: Work, unit: Unit) -> float:
    """Whole gradients of the unit at work, and the float32 buffer of the unit before it."""
    return unit.trained_elements * (work.types.compute + REDUCTION_BYTES) if work.sharded else 0
