"""Upper ends of memory forecasts for the search; what executions share is computed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from shardwise.plan.memory.forecast import upper_ends
from shardwise.plan.memory.inventory import Inventory
from shardwise.plan.memory.margins import context_bytes
from shardwise.plan.memory.parts import Part, parts
from shardwise.plan.memory.persistent import Holding, holdings, shard_degree, weight_degree
from shardwise.plan.memory.work import Work, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import stages_per_rank
from shardwise.spec.model import ModelShape


@dataclass(kw_only=True, eq=False)
class Peaks:
    """The upper ends of memory forecasts of one job on one kind of GPU, and a lower bound of them."""

    job: Job
    model: ModelShape
    cluster: Cluster
    inventory: Inventory
    _parts: dict[object, tuple[Part, ...]] = field(default_factory=dict[object, tuple[Part, ...]])
    _held: dict[object, tuple[Holding, ...]] = field(default_factory=dict[object, tuple[Holding, ...]])
    _works: dict[object, Work] = field(default_factory=dict[object, Work])
    _highs: dict[Execution, int] = field(default_factory=dict[Execution, int])

    def high_bytes(self, execution: Execution) -> int:
        """`MemoryForecast.peak_high_bytes` of an execution."""
        if execution not in self._highs:
            self._highs[execution] = round(max(self._upper_ends(execution)))
        return self._highs[execution]

    def fits(self, execution: Execution, capacity: int) -> bool:
        """Whether `high_bytes` is no more than so many."""
        if execution in self._highs:
            return self._highs[execution] <= capacity
        if self.least_bytes(execution) > capacity:
            return False
        high = 0.0
        for end in self._upper_ends(execution):
            high = max(high, end)
            if round(end) > capacity:
                return False
        self._highs[execution] = round(high)
        return True

    def _upper_ends(self, execution: Execution) -> Iterator[float]:
        work = self.work(execution)
        return chain.from_iterable(upper_ends(work, holding) for holding in self._fullest(execution))

    def least_bytes(self, execution: Execution) -> float:
        """A lower bound: weights and optimizer states of the fullest rank, with all its gradients or what its blocks
        save of one micro-batch."""
        work = self.work(execution)
        return context_bytes(self.cluster, execution.layout) + max(
            one.stored + one.optimizer + max(one.gradients, self._saved(work, one.part))
            for one in self._fullest(execution)
        )

    def bytes_of_states(self, execution: Execution) -> int:
        """Weights, gradients and optimizer states of the fullest rank."""
        return max(one.stored + one.optimizer + one.gradients for one in self._fullest(execution))

    def bytes_on_host(self, execution: Execution) -> int:
        """Bytes that offload puts into the host's memory, for the rank with most of them."""
        return max(one.on_host for one in self._fullest(execution))

    def _saved(self, work: Work, part: Part) -> float:
        blocks = len(part.span) - 1  # The first block may keep less, and is not counted.
        return max(0.0, blocks * work.saved * work.tokens)

    def work(self, execution: Execution) -> Work:
        """An execution with the numbers that its forecasts share."""
        key = (
            execution.layout.tp,
            execution.gathers_weights,
            execution.attn_implementation,
            execution.precision,
            execution.gradient_checkpointing,
        )
        if key not in self._works:
            self._works[key] = work_of(
                self.job, model=self.model, cluster=self.cluster, execution=execution, inventory=self.inventory
            )
        return replace(self._works[key], execution=execution)

    def _fullest(self, execution: Execution) -> Iterable[Holding]:
        """The first shard of each distinct pipeline rank, which holds most; all shards for AdamW in 8 bits, which keeps
        states of small tensors in 32."""
        layout = execution.layout
        stages = (layout.tp, layout.pp, stages_per_rank(layout.schedule))
        key = (
            *stages,
            weight_degree(layout),
            shard_degree(layout),
            execution.precision,
            execution.optimizer,
            execution.offload,
        )
        if key not in self._held:
            if stages not in self._parts:
                self._parts[stages] = parts(self.model, self.inventory, layout, distinct=True)
            every = execution.optimizer == "adamw_8bit"
            work = self.work(execution)
            self._held[key] = tuple(
                holding
                for part in self._parts[stages]
                if every or part.tp.start == 0
                for holding in holdings(
                    part,
                    execution,
                    types=work.types,
                    momentum=self.job.train.momentum > 0,
                    first_only=not every,
                    host_apart=work.setting.cuda,
                )
            )
        return self._held[key]
