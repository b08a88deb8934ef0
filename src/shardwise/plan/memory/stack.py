"""Where another stack's memory differs from our trainer's, in bytes: terms that its public code
explains.

Each term is a whole number of tensors of known size; none is a factor fitted to a figure. How each
was found, and on which source, is said beside it; the other sources are then the check.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.plan.costs.loss import in_loss
from shardwise.plan.memory.forecast import holdings_of, moments
from shardwise.plan.work import FLOAT32_BYTES, Alive, Flight, Holding, Scene, Work, made_again

#: Elements of a shard that stage 3 steps at a time, by default (sub_group_size).
_SUB_GROUP = 1_000_000_000
_BEFORE_GRADIENTS = ("forward of layer", "end of forward", "backward of the loss")
_IN_BACKWARD = ("backward of layer", "backward of the embedding")
_STEP = ("optimizer step", "exchange of new weights")


@dataclass(frozen=True, kw_only=True)
class Zero:
    """A stage of DeepSpeed's ZeRO: gradients alive at other instants than this trainer's, for the
    same sharding (deepspeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py; measured by
    `python -m accuracy.grid.stacks deepspeed`, and `llama-factory`).

    Attributes:
        stage: 0 to 3, all beside our `zero1`: in stages 1 and 2 weights are whole, in the type that
            they were loaded in. Stage 3 gathers a unit in 16 bits and then in that type, and
            autocast casts it once more for the product, which keeps that to its backward.
        ranks: that a stage shards over.
        bucket_bytes: of buffers that gradients are reduced in: in stages 1 and 2 from the first
            gradient to the end of backward, in stage 3 always.
        accumulates: a step has several micro-batches.
        kept_bytes: of an element of the weights, which gradients have too: 4 under autocast, 2 in
            an engine of 16 bits, whose masters the step alone knows.
    """

    stage: int
    ranks: int
    bucket_bytes: int
    accumulates: bool
    kept_bytes: int = FLOAT32_BYTES

    def changed(self, name: str, alive: Mapping[str, float], holding: Holding) -> dict[str, float]:
        """What is alive at an instant of ours, as it is there."""
        # AdamW's two moments are of the weights' type in what is changed here.
        made, share = dict(alive), holding.optimizer / 2
        gradients, backward = made.get("gradients", 0), name.startswith(_IN_BACKWARD)
        buckets = self.bucket_bytes if self.stage and backward else 0
        made["communication"] = made.get("communication", 0) + buckets
        if self.stage == 3:
            # Shards of all gradients are a buffer that stays.
            unit, trained = _unit(name, holding)
            made["weights"] = holding.stored / self.ranks
            # What is frozen is stored in 16 bits, as all is without autocast.
            cast = trained * FLOAT32_BYTES * (self.kept_bytes == FLOAT32_BYTES)
            made["communication"] = self.bucket_bytes + unit * 2 + cast
            made["gradients"] = share + (gradients - holding.gradients if gradients > holding.gradients else 0)
            if name in _STEP:
                # Of a group at a time: gradients twice more, and AdamW's copy, added for the shard.
                group = min(share, _SUB_GROUP * self.kept_bytes)
                made["gradients"] += group + group * FLOAT32_BYTES / self.kept_bytes
                made["temporary"] = made.get("temporary", 0) + group - share
            elif backward:
                made["gradients"] += trained * self.kept_bytes
        elif name in _STEP and self.stage:
            # The shard's gradients, and again in float32, by way of one tensor; weights in place.
            by_way = share * (self.kept_bytes < FLOAT32_BYTES)
            made["gradients"] = share + by_way + share * FLOAT32_BYTES / self.kept_bytes
            made["communication"] = 0
        elif name.startswith(_BEFORE_GRADIENTS) and gradients >= holding.gradients and not self.accumulates:
            # Ours are parts of messages and stay; here they are freed as a step ends.
            made["gradients"] = gradients - holding.gradients
        if self.stage in (1, 2):
            # The last gradient that a backward makes, the embedding's, stays until the next.
            made["gradients"] = made.get("gradients", 0) + holding.part.trained_head * self.kept_bytes
        return made


def _unit(name: str, holding: Holding) -> tuple[int, int]:
    """Elements of the weights that are gathered at an instant, and how many of them are trained."""
    part, block = holding.part, holding.part.inventory.block
    if name in ("end of forward", "backward of the loss"):
        return part.head_elements, part.trained_head
    return (block.elements, block.trained_elements) if "of layer" in name else (0, 0)


_LOSS_INSTANTS = ("end of forward", "backward of the loss")
#: Bytes per logit of transformers' own loss, which keeps all logits, and their log-probabilities to
#: backward: twice in 16 bits (three float32 copies in backward) and twice in float32.
WHOLE_LOGIT_BYTES = 12
#: And of PyTorch's loss over sliced logits (torch 2.13, distributed/tensor/parallel/loss.py), whose
#: backward has log-probabilities, zeros, exponents and a sum at once, all float32.
SLICED_LOGIT_BYTES = 16
#: Published peaks are those of training steps: nothing was evaluated or saved between them.
_NOT_MEASURED = ("evaluation", "saving")
#: Instants at which nothing of blocks is alive that another stack has otherwise.
WITHOUT_BLOCKS = ("loading", "optimizer step", "sum of gradients over replicas")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What a row's stack does that our trainer does not.

    Attributes:
        optimizer_copies: AdamW over lists of tensors takes the square roots of all second moments
            at once: one copy of what a rank trains. Code: `torch.optim.adamw`, foreach.
        logit_bytes: bytes per logit alive together in a loss of whole logits; a cross entropy that
            writes the gradient over its input leaves two float32 copies. Gradients of the head come
            after it, and not with it as ours.
        every_second_product: selective recompute as torchtitan does it keeps every second matrix
            product of a block, whatever its size.
        master_bytes: of each weight that a rank trains, in float32 beside the weights.
        tile: tokens and words of the buffer of a loss in tiles, whose gradients are in float32.
        zero: DeepSpeed's stage.
    """

    optimizer_copies: int = 0
    logit_bytes: int = WHOLE_LOGIT_BYTES
    every_second_product: bool = False
    master_bytes: int = 0
    tile: tuple[int, int] = (0, 0)
    zero: Zero | None = None

    def changed(self, name: str, alive: Alive, work: Work, holding: Holding) -> Alive:
        """What is alive at an instant, with the stack's differences."""
        changed = dict(alive) if self.zero is None else self.zero.changed(name, alive, holding)
        if self.master_bytes:
            # AdamW's two moments have 8 bytes of each weight that the rank steps.
            add(changed, "optimizer", holding.optimizer * self.master_bytes / 8)
        if name == "optimizer step":
            # A copy is as large as one of AdamW's two moments.
            add(changed, "temporary", self.optimizer_copies * holding.optimizer / 2)
        if name in _LOSS_INSTANTS and (work.execution.loss == "full" or any(self.tile)):
            _put_loss(changed, name, work, holding, self)
        if name in WITHOUT_BLOCKS:
            return changed
        if self.every_second_product:
            # Theirs keeps the first, third, ... product, ours those that `made_again` leaves.
            every = enumerate(work.block.matrices)
            more = sum(m.run * m.rows * ((index % 2 == 0) - (not made_again(m))) for index, m in every)
            add(changed, "activations", more * work.types.compute * work.tokens * len(holding.part.span))
        if work.execution.compile and work.execution.gradient_checkpointing == "none":
            # Theirs saves what products read too; ours has that of the block at work.
            blocks = len(holding.part.span) - name.startswith("backward of layer")
            add(changed, "activations", blocks * work.tokens * (work.of_block.saved_whole - work.of_block.saved))
        return changed


def peak_of_stack(work: Work, difference: Difference) -> tuple[str, float]:
    """The largest instant as the row's stack has it: its name, and what is given out then."""
    named = [
        (name, sum(difference.changed(name, alive, work, holding).values()))
        for holding in holdings_of(work)
        for name, alive in moments(work, holding)
        if name not in _NOT_MEASURED
    ]
    return max(named, key=lambda found: found[1])


def _put_loss(changed: Alive, name: str, work: Work, holding: Holding, difference: Difference) -> None:
    """Of a loss in tiles one buffer of tokens x words, as large for a small vocabulary; in backward
    the gradients of the head and of its input, both in float32."""
    made = holding.part.trained_head * work.types.compute
    add(changed, "gradients", -in_loss(Scene(work, holding, Flight()))[1] if name == "end of forward" else -made)
    if work.execution.loss == "full":
        changed["logits"] = work.tokens * work.head_slice * difference.logit_bytes
        return
    tokens, words = difference.tile
    changed["logits"] = min(work.tokens, tokens) * words * work.types.compute
    if name == "backward of the loss":
        add(changed, "gradients", holding.part.trained_head * FLOAT32_BYTES)
        add(changed, "temporary", work.tokens * work.model.hidden_size * FLOAT32_BYTES)


def add(alive: Alive, part: str, count: float) -> None:
    """Bytes more of a part."""
    alive[part] = alive.get(part, 0) + count
