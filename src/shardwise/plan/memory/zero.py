"""DeepSpeed's ZeRO: gradients alive at other instants than this trainer's, for the same sharding

Code: deepspeed 0.19.8, runtime/zero/stage_1_and_2.py and stage3.py. `python -m accuracy.grid.stacks
deepspeed` and `llama-factory` measure its steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.plan.work import FLOAT32_BYTES, Holding

#: Elements of a shard that stage 3 steps at a time, by default (sub_group_size).
_SUB_GROUP = 1_000_000_000
_BEFORE_GRADIENTS = ("forward of layer", "end of forward", "backward of the loss")
_IN_BACKWARD = ("backward of layer", "backward of the embedding")
_STEP = ("optimizer step", "exchange of new weights")


@dataclass(frozen=True, kw_only=True)
class Zero:
    """One stage.

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
