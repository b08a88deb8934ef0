"""The work of one rank: a job, its model and one execution, with the derived numbers that memory and time share."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.plan.activations import Setting, saved_bytes
from shardwise.plan.inventory import Inventory
from shardwise.plan.types import TYPES, Types
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job
from shardwise.spec.layout import CHUNK_TOKENS, Execution
from shardwise.spec.model import ModelShape


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every rank does in one optimizer step.

    Attributes:
        setting: what a block's saved bytes depend on.
        saved_whole: bytes per token that the block which keeps most keeps without recompute.
        saved: bytes per token that the mean block keeps with the execution's recompute.
    """

    job: Job
    model: ModelShape
    cluster: Cluster
    execution: Execution
    inventory: Inventory
    types: Types
    setting: Setting
    saved_whole: float = field(repr=False)
    saved: float = field(repr=False)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch, at worst: every sequence as long as it may be."""
        return self.execution.micro_batch_size * self.job.data.max_length

    @property
    def sharded(self) -> bool:
        """Whether weights are gathered as they are needed."""
        return self.execution.layout.dp_shard > 1

    @property
    def replicated(self) -> bool:
        """Whether whole gradients live in the buckets of data parallelism."""
        return not self.sharded and self.execution.layout.dp_replicate > 1

    @property
    def accumulates(self) -> bool:
        """Whether gradients of an earlier micro-batch are alive in the last one's forward."""
        return self.execution.gradient_accumulation_steps > 1

    @property
    def chunked(self) -> bool:
        """Whether the head runs over a chunk of the positions at a time."""
        return self.execution.loss == "chunked" and self.model.plain_head

    @property
    def head_tokens(self) -> int:
        """Positions whose logits are alive together."""
        return min(self.tokens, CHUNK_TOKENS) if self.chunked else self.tokens


def work_of(job: Job, *, model: ModelShape, cluster: Cluster, execution: Execution, inventory: Inventory) -> Work:
    """Derives what memory and time need from an execution."""
    types = TYPES[execution.precision]
    length = job.data.max_length
    setting = Setting(
        inventory=inventory,
        types=types,
        sharded=execution.layout.dp_shard > 1,
        masked=job.data.packing or (model.sliding_window or length) < length,
        attention=execution.attn_implementation,
        length=length,
        dropout=bool(job.adapters and job.adapters.lora_dropout),
        cuda=cluster.gpu.kind == "cuda",
    )
    return Work(
        job=job,
        model=model,
        cluster=cluster,
        execution=execution,
        inventory=inventory,
        types=types,
        setting=setting,
        saved_whole=max(saved_bytes(kind, setting, recompute="none") for kind in model.kinds),
        saved=_mean_saved(model, setting, execution),
    )


def _mean_saved(model: ModelShape, setting: Setting, execution: Execution) -> float:
    recompute = execution.gradient_checkpointing
    kept = [(kind.num_layers, saved_bytes(kind, setting, recompute=recompute)) for kind in model.kinds]
    if len(kept) == 1:
        return kept[0][1]
    return sum(count * of_one for count, of_one in kept) / model.num_layers
