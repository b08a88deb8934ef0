"""A job under one execution, with the numbers that memory and time share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import ceil
from typing import Any, TypeVar

from shardwise.plan.work.activations import BlockSetting
from shardwise.plan.work.block_bytes import BlockBytes, block_bytes, profiled_bytes
from shardwise.plan.work.inventory import Inventory, Outer, Unit, outer, take_inventory
from shardwise.plan.work.parts import sliced_shape
from shardwise.plan.work.tensors import TYPES, DtypeBytes
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution, chosen_positions
from shardwise.spec.model.profile import Amount, ModelProfile
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.support.attention import MASKED
from shardwise.spec.support.splits import parts_of_stream

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every rank does in one optimizer step.

    `block` is the model as one tensor-parallel rank sees it, `of_block` what a block of it keeps
    and works in. `document` is the mean length of a packed row, `trained` the positions of a
    micro-batch that are trained, where they are known; `profile` is of the model's blocks, where no
    rules forecast them.
    """

    job: Job
    model: ModelShape
    cluster: Cluster
    execution: Execution
    inventory: Inventory
    types: DtypeBytes
    block: ModelShape = field(repr=False)
    setting: BlockSetting
    of_block: BlockBytes = field(repr=False)
    document: float | None = None
    trained: int | None = None
    profile: ModelProfile | None = field(default=None, repr=False)
    memo: dict[object, Any] = field(default_factory=dict[object, Any], repr=False, compare=False)

    def under(self, execution: Execution) -> Work:
        """The work of an execution that differs only in sharing data and stages, sizes, order."""
        # Not `replace`: a search makes many thousands, and needs no values computed of this one.
        other = object.__new__(Work)
        other.__dict__.update({name: self.__dict__[name] for name in _FIELDS}, execution=execution)
        return other

    def once(self, what: str, make: Callable[[], T], *differs: object) -> T:
        """Something that depends, beside `differs`, on how ranks share the model and on nothing of
        micro-batches or order: made once for all executions that share this `memo`."""
        made, key = self._made_once, (what, differs)
        if key not in made:
            made[key] = make()
        return made[key]

    def of_job(self, what: object, make: Callable[[], T]) -> T:
        """Something that depends on no execution: made once for all that share this `memo`."""
        if what not in self.memo:
            self.memo[what] = make()
        return self.memo[what]

    @cached_property
    def _made_once(self) -> dict[object, Any]:
        # All that results kept by `once` may depend on: what is left out here must be in `differs`.
        execution, layout = self.execution, self.execution.layout
        axes = (*layout.degrees, *layout.expert_degrees)
        shards = (layout.zero_stage, layout.shard_over_cp, layout.reshard_after_forward)
        units = (*shards, layout.min_num_params, layout.schedule == "zero_bubble")
        types = (execution.precision, execution.optimizer, execution.offload)
        return self.memo.setdefault((*axes, *units, *types, execution.reduce_once), {})

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank, every sequence of the maximum length."""
        return self.rows * -(-self.job.data.max_length // self.execution.layout.cp)

    def mean(self, of: Callable[[Unit], float]) -> float:
        """A number of the mean block: times are affine in bytes, so all blocks' sum is right."""
        return self.inventory.over_blocks(of) / self.model.num_layers

    def outer_of_stage(self, stage: int) -> Outer:
        """What a pipeline stage holds beside its blocks."""
        return outer(self.inventory, stage == 0, stage == self.execution.layout.num_stages - 1)

    def profiled(self, amount: Amount) -> float:
        """What a profile counts of a micro-batch on one rank."""
        return self.tokens * amount.per_token(self.setting.length) + amount.once

    @property
    def trained_of_mean(self) -> float:
        """Elements of the mean block that have gradients."""
        return self.inventory.trained_of_blocks / self.model.num_layers

    @property
    def rows(self) -> int:
        """Sequences of a micro-batch on one rank: a pair has two."""
        return self.execution.micro_batch_size * self.job.sides

    @cached_property
    def sharded(self) -> bool:
        """Whether weights are gathered as they are needed, from other ranks or from the host."""
        return self.execution.gathers_weights

    @cached_property
    def replicated(self) -> bool:
        """Whether whole gradients live in data-parallel buckets, which DDP alone keeps."""
        return self.execution.layout.fills_buckets and not self.sharded

    @cached_property
    def unit_blocks(self) -> int:
        """Blocks of the largest unit gathered and reduced together, taking all blocks as alike."""
        least, mean = self.execution.layout.min_num_params, self.inventory.of_mean_block(lambda unit: unit.elements)
        return max(1, min(self.inventory.num_blocks, ceil(least / mean))) if least else 1

    @cached_property
    def saves_on_host(self) -> bool:
        """Whether what blocks save waits for their backward in other memory than the rank's own."""
        # A CPU process has no other memory: what is "on the host" stays its own.
        return self.execution.saves_on_host and self.setting.cuda

    @property
    def evaluates(self) -> bool:
        """Whether a run of the job evaluates."""
        data = self.job.data
        return bool(data.eval_path or data.eval_fraction or self.job.train.eval_steps)

    @property
    def head_positions(self) -> int:
        """Positions of a micro-batch that go through the head."""
        return self.tokens if self.trained is None else chosen_positions(self.trained, of=self.tokens)

    @property
    def head_tokens(self) -> int:
        """Positions whose logits are alive together."""
        return min(self.head_positions, self.execution.head_chunk(self.model.vocab_size, plain=self.model.plain_head))

    @property
    def mlp_tokens(self) -> int:
        """Positions whose MLP is computed at once."""
        return min(self.tokens, self.execution.mlp_chunk(self.model.hidden_size))

    @property
    def head_slice(self) -> float:
        """Logits of each of them on one rank."""
        # Logits that are capped or scaled are gathered before, whole on each rank.
        return self.model.vocab_size / (self.execution.layout.tp if self.model.plain_head else 1)


_FIELDS = tuple(one.name for one in fields(Work))


def work_of(job: Job, *, model: ModelShape, cluster: Cluster, execution: Execution, inventory: Inventory) -> Work:
    """Derives what memory and time need from an execution."""
    types, layout = TYPES[execution.precision], execution.layout
    length = job.data.max_length
    block = sliced_shape(model, degree=layout.tp)
    setting = BlockSetting(
        inventory=inventory,
        types=types,
        sharded=execution.gathers_weights,
        # Documents or a window shorter than rows: these kernels are given a mask for either.
        masked=execution.attn_implementation in MASKED
        and (bool(job.data.packing) or (model.sliding_window or length) < length),
        attention=execution.attn_implementation,
        length=length,
        dropout=bool(job.adapters and job.adapters.lora_dropout),
        stream_dropout=model.drops_stream and not job.train.disable_dropout,
        score_dropout=model.drops_scores and not job.train.disable_dropout,
        tp=layout.tp,
        in_parts=layout.splits_rows,
        compiled=execution.compile,
        tiled=execution.mlp == "chunked",
        cuda=cluster.gpu.kind == "cuda",
    )
    recompute, sharded = execution.recompute, execution.gathers_weights and types.autocasts
    key = (execution.precision, execution.attn_implementation, recompute, sharded)
    # None where rules forecast blocks, or no profile was made under such an execution.
    profile = next((p for p in model.profiles if (p.precision, p.attention, p.recompute, p.sharded) == key), None)
    if profile is not None and layout.tp > 1:
        held = [s.block_parameters / w.block_parameters for s, w in zip(block.kinds, model.kinds, strict=True)]
        profile = profile.on_rank(layout.tp, held=held, stream=1 / parts_of_stream(model, layout.tp))
    return Work(
        job=job,
        model=model,
        cluster=cluster,
        execution=execution,
        inventory=inventory,
        types=types,
        block=block,
        setting=setting,
        of_block=block_bytes(
            block, setting, recompute=recompute, quantised=job.method == "qlora", experts=job.quantises_experts
        )
        if profile is None
        else profiled_bytes(block, setting, profile, recompute=recompute),
        profile=profile,
    )


def work_of_plan(plan: Plan, execution: Execution) -> Work:
    """An execution of a plan's job on the hardware it needs, with rows as long as possible. Raises
    KeyError, TypeError, ValueError: the plan was written by hand or by another version."""
    job, model = job_from_data(plan.job), ModelShape.from_json(plan.model)
    cluster = Cluster.from_json(plan.hardware).part(execution.layout.world_size)
    return work_of(job, model=model, cluster=cluster, execution=execution, inventory=take_inventory(job, model))
