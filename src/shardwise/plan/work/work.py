"""A job under one execution, with the numbers that memory and time share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import ceil
from typing import Any, Generic, TypeVar, cast

from shardwise.plan.work.activations import (
    BlockSetting,
    again_at_adapter_bytes,
    backward_bytes,
    block_input_bytes,
    compiled_attention_bytes,
    cut_backward_bytes,
    everything_bytes,
    final_norm_bytes,
    fused_mlp_bytes,
    mlp_begin_bytes,
    mlp_bytes,
    norm_backward_bytes,
    reads_in_place,
    remade_backward_bytes,
    remade_bytes,
    routed_bytes,
    saved_bytes,
    saved_under_recompute,
)
from shardwise.plan.work.inventory import Inventory
from shardwise.plan.work.parts import sliced_shape
from shardwise.plan.work.tensors import TYPES, DtypeBytes
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Execution, chosen_positions
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.attention import MASKED

T = TypeVar("T")


class of_all_sizes(Generic[T]):  # noqa: N801  # a decorator, as cached_property
    """A number of a work that depends on nothing in which `Work.under` makes others: computed once for all of them."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make, self.name, self.__doc__ = make, make.__name__, make.__doc__

    def __get__(self, work: Work | None, owner: type[Work]) -> T:
        if work is None:
            return cast(T, self)
        if self.name not in work.alike:
            work.alike[self.name] = self.make(work)
        return work.__dict__.setdefault(self.name, work.alike[self.name])


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every rank does in one optimizer step.

    `block` is the model as one tensor-parallel rank sees it. `saved_whole` are bytes per token of all that operators of
    the largest block save, `saved` what the mean block keeps under the execution, which may make some of it again.
    `document` is the mean length of a packed row, `trained` the positions of a micro-batch that are trained, where they
    are known.
    """

    job: Job
    model: ModelShape
    cluster: Cluster
    execution: Execution
    inventory: Inventory
    types: DtypeBytes
    block: ModelShape = field(repr=False)
    setting: BlockSetting
    saved_whole: float = field(repr=False)
    saved: float = field(repr=False)
    document: float | None = None
    trained: int | None = None
    memo: dict[object, Any] = field(default_factory=dict[object, Any], repr=False, compare=False)
    alike: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    def under(self, execution: Execution) -> Work:
        """The work of an execution that differs in how ranks share data and stages, in sizes and in order alone."""
        other = object.__new__(Work)
        other.__dict__.update({name: self.__dict__[name] for name in _FIELDS}, execution=execution)
        return other

    def once(self, what: str, make: Callable[[], T], *differs: object) -> T:
        """Something that depends, beside `differs`, on how ranks share the model and on nothing of micro-batches or
        order: made once for all executions that share this `memo`."""
        key = (what, differs, self._sharing)
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    @cached_property
    def _sharing(self) -> tuple[object, ...]:
        execution, layout = self.execution, self.execution.layout
        axes = (layout.dp_replicate, layout.dp_shard, layout.tp, layout.pp, layout.cp, layout.ep, layout.zero_stage)
        units = (layout.reshard_after_forward, layout.min_num_params, layout.schedule == "zero_bubble")
        types = (execution.precision, execution.optimizer, execution.offload)
        return (*axes, *units, *types, execution.reduce_once)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank, every sequence of the maximum length."""
        return self.execution.micro_batch_size * -(-self.job.data.max_length // self.execution.layout.cp)

    @cached_property
    def sharded(self) -> bool:
        """Whether weights are gathered as they are needed, from other ranks or from the host."""
        return self.execution.gathers_weights

    @cached_property
    def replicated(self) -> bool:
        """Whether whole gradients live in the buckets of data parallelism, which DDP alone keeps."""
        return self.execution.layout.fills_buckets and not self.sharded

    @cached_property
    def unit_blocks(self) -> int:
        """Blocks of the largest unit that is gathered and reduced together, taking all blocks to be alike."""
        blocks, least = self.inventory.num_blocks, self.execution.layout.min_num_params
        mean = self.inventory.over_blocks(lambda unit: unit.elements) / max(1, blocks)
        return max(1, min(blocks, ceil(least / mean))) if least else 1

    @of_all_sizes
    def block_input(self) -> float:
        """Bytes per token of the residual stream."""
        return block_input_bytes(self.block, self.setting)

    @of_all_sizes
    def block_backward(self) -> tuple[float, float, float]:
        """Bytes per token of gradients inside a block, above what it saved (`backward_bytes`)."""
        return backward_bytes(self.block, self.setting)

    @of_all_sizes
    def saved_by_mlp(self) -> float:
        """Bytes per token that a block's MLP saves, which its backward has let go of when that of attention begins."""
        return mlp_bytes(self.block, self.setting, recompute=self.execution.recompute)

    @of_all_sizes
    def mlp_begins(self) -> float:
        """Bytes per token as a block's backward comes to the matrix of its MLP that was first."""
        return mlp_begin_bytes(self.block, self.setting)

    @of_all_sizes
    def again_at_adapter(self) -> float:
        """Bytes per token as a block that is computed again comes to the adapter of its MLP's last matrix."""
        again = self.execution.recompute != "none"
        return again_at_adapter_bytes(self.block, self.setting) if again else 0.0

    @property
    def copies_messages(self) -> bool:
        """Whether gloo gathers, which makes a copy of what arrives."""
        return not self.setting.cuda

    @cached_property
    def saves_on_host(self) -> bool:
        """Whether what blocks save waits for their backward in other memory than the rank's own."""
        return self.execution.saves_on_host and self.setting.cuda

    @of_all_sizes
    def saved_tensors(self) -> tuple[float, ...]:
        """Bytes per token of each tensor that the largest block saves under recompute."""
        kinds = (saved_under_recompute(kind, self.setting, self.execution.recompute) for kind in self.block.kinds)
        return max(kinds, key=sum)

    @of_all_sizes
    def fused_mlp(self) -> float:
        """Bytes per token in the kernel of a compiled block that makes the gradients inside its MLP."""
        return fused_mlp_bytes(self.block, self.setting, recompute=self.execution.recompute)

    @of_all_sizes
    def compiled_attention(self) -> float:
        """Bytes per token as a compiled block's backward comes to attention, above what it saved and the stream's."""
        return compiled_attention_bytes(self.block, self.setting, recompute=self.execution.recompute)

    @of_all_sizes
    def cut_backward(self) -> float:
        """Bytes per token that a block's backward of inputs leaves for that of weights, where the two are cut."""
        return cut_backward_bytes(self.block, self.setting)

    @of_all_sizes
    def last_matrix(self) -> int:
        """Elements of the matrix that reads a dense MLP's product, where it is trained."""
        last = [m for m in self.block.matrices if m.reads == "mlp_product" and self.inventory.trained(m.name)]
        return max((m.rows * m.columns for m in last), default=0)

    @of_all_sizes
    def norm_backward(self) -> float:
        """Bytes per token that the backward of a norm at a block's end works in, where the block has one."""
        return norm_backward_bytes(self.block, self.setting)

    @of_all_sizes
    def routed(self) -> tuple[float, float]:
        """Bytes per token around the mean over experts, in forward and in backward."""
        return max(routed_bytes(kind, self.setting) for kind in self.block.kinds)

    @of_all_sizes
    def reads_in_place(self) -> bool:
        """Whether a block keeps its input as it comes in, and no copy of it."""
        return reads_in_place(self.block, self.setting)

    @of_all_sizes
    def computed_weights(self) -> float:
        """Bytes of whole matrices that exist while one is used: dequantised ones, and those whose norm DoRA takes.

        PEFT multiplies an identity by A and B, adds the scaled product to the weight, and takes norms of its rows, in
        the adapters' type where that is wider.
        """
        matrices = [m for kind in self.block.kinds for m in kind.matrices if m.adaptable]
        dequantised = normed = 0
        if self.job.method == "qlora":
            dequantised = max((m.rows * m.columns for m in matrices), default=0)
        if self.inventory.dora:
            compute, wide = self.types.compute, self.setting.adapter_bytes
            sums = 2 * compute + wide + (wide if wide != compute else 0)
            adapted = (m for m in matrices if m.name in self.inventory.adapted)
            normed = max((sums * m.rows * m.columns + wide * m.columns**2 for m in adapted), default=0)
        return dequantised * self.types.compute + normed

    @of_all_sizes
    def remade(self) -> float:
        """Bytes of the weights with their adapters' products that a block makes of bare parameters."""
        return max(remade_bytes(kind, self.setting) for kind in self.block.kinds)

    @property
    def keeps_remade(self) -> bool:
        """Whether they stay until the block's backward; under recompute they are made again."""
        return self.execution.recompute == "none"

    @of_all_sizes
    def remade_backward(self) -> float:
        """Bytes of the gradients of such weights inside a block."""
        return max(remade_backward_bytes(kind, self.setting) for kind in self.block.kinds)

    @of_all_sizes
    def remade_by_mean(self) -> float:
        """The same of the mean block."""
        kinds = self.block.kinds
        return sum(kind.num_layers * remade_bytes(kind, self.setting) for kind in kinds) / self.block.num_layers

    @of_all_sizes
    def final_norm(self) -> float:
        """Bytes per token that the norm behind the blocks keeps."""
        return final_norm_bytes(self.block, self.setting)

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
    def head_slice(self) -> float:
        """Logits of each of them on one rank."""
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
        masked=execution.attn_implementation in MASKED
        and (job.data.packing or (model.sliding_window or length) < length),
        attention=execution.attn_implementation,
        length=length,
        dropout=bool(job.adapters and job.adapters.lora_dropout),
        stream_dropout=model.drops_stream and not job.train.disable_dropout,
        score_dropout=model.drops_scores and not job.train.disable_dropout,
        tp=layout.tp,
        cp=layout.cp,
        compiled=execution.compile,
        cuda=cluster.gpu.kind == "cuda",
    )
    return Work(
        job=job,
        model=model,
        cluster=cluster,
        execution=execution,
        inventory=inventory,
        types=types,
        block=block,
        setting=setting,
        saved_whole=max(everything_bytes(kind, setting) for kind in block.kinds),
        saved=_mean_saved(block, setting, execution),
    )


def _mean_saved(model: ModelShape, setting: BlockSetting, execution: Execution) -> float:
    recompute = execution.recompute
    kept = [(kind.num_layers, saved_bytes(kind, setting, recompute=recompute)) for kind in model.kinds]
    if len(kept) == 1:
        return kept[0][1]
    return sum(count * of_one for count, of_one in kept) / model.num_layers
