"""What may fit on some number of GPUs, and what fits on none up to the most that are asked about.

What a rank needs beside its share of the states does not shrink with more GPUs. So executions that differ in nothing
but how many ranks share the data, and the states, are all told about at once: by the smallest micro-batch, alone in its
step, with as many shards as the most GPUs make. `tests/unit/plan/test_monotone.py` holds that none needs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import bases, lean_sizes, sized, sizes_on
from shardwise.plan.products import Choice, copies, layouts, layouts_spread, ways_to_share
from shardwise.plan.question import Question, with_least_states
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import CHUNK_TOKENS, Execution, Recompute, heads_in_chunks
from shardwise.spec.layout import Layout, Schedule


class Prospects:
    """What may fit on parts of a question's cluster, whatever the host has.

    Args:
        question: asked of the most GPUs, with the offload that is meant.
        within: of the same question on more of the same hardware: what does not fit there does not fit here.
    """

    def __init__(self, question: Question, *, within: Prospects | None = None) -> None:
        self._question = question
        self._within = within
        self._least = with_least_states(question)
        self._bounds = Bounds(self._least, timed=False)
        self._degrees: dict[tuple[str, int], bool] = {}
        self._spreads: dict[tuple[object, ...], bool] = {}
        self._known: dict[tuple[Layout, Recompute], bool] = {}

    def layouts(self, part: Cluster) -> Iterator[Choice]:
        """The layouts on all GPUs of a part, without those that spread a copy of the model as none that fits does.

        Raises:
            UnsupportedError: a stated layout needs more GPUs than there are, or cannot be formed.
        """
        job, model = self._question.job, self._question.model
        if job.stated_layout is not None:
            yield from layouts(job, model, part)
            return
        for copy in copies(job, model, part.num_gpus, self._degrees):
            if self._may_be_spread(copy, part.num_gpus):
                yield from layouts_spread(job, model, part, copy=copy)

    def may_fit(self, base: Execution) -> bool:
        """Whether an execution may fit with some micro-batch, were the data shared by as many ranks as there can be."""
        layout, schedule = self._leanest(base.layout), _with_one_micro_batch(base)
        key = (replace(layout, schedule=schedule), base.gradient_checkpointing)
        if key not in self._known:
            train = self._least.job.train
            optimizer = base.optimizer if train.optimizer == "auto" else train.optimizer
            leanest = replace(base, layout=key[0], optimizer=optimizer)
            self._known[key] = (self._within is None or self._within.may_fit(base)) and any(
                self._has_room(leanest, size) for size in self._lean_sizes(leanest)
            )
        return self._known[key]

    def _may_be_spread(self, copy: dict[str, Any], num_gpus: int) -> bool:
        """Whether anything may fit that spreads a copy of the model so: one copy, or several of them."""
        job, model, cluster = self._question.job, self._question.model, self._question.cluster
        several = num_gpus > copy["tp"] * copy["pp"] * copy["cp"]
        key = (*copy.values(), several)
        if key not in self._spreads:
            ways = ways_to_share(job, model, cluster, copy=copy, several=several)
            self._spreads[key] = any(self.may_fit(base) for way in ways for base in bases(job, model, way))
        return self._spreads[key]

    def _leanest(self, layout: Layout) -> Layout:
        """With as many shards as there can be; of what is not sharded, with two copies."""
        if layout.dp_shard == 1:
            return replace(layout, dp_replicate=min(2, layout.dp_replicate))
        copy = layout.tp * layout.pp * layout.cp
        return replace(layout, dp_replicate=1, dp_shard=max(2, self._question.cluster.num_gpus // copy))

    def _lean_sizes(self, base: Execution) -> set[int]:
        """Sizes one of which needs least: of those that hold their logits in the same way, the smallest.

        In a pipeline that is also the smallest of several chunks, which are computed again where a single one is kept.
        """
        job, model = self._question.job, self._question.model
        (size, *larger) = sizes_on(job, 1)
        if not larger:
            return {size}
        sizes = set(lean_sizes(base, job, model, size))
        if base.layout.pp > 1 and heads_in_chunks(loss=job.train.loss, plain_head=model.plain_head):
            sizes.add(CHUNK_TOKENS // -(-self._question.length // base.layout.cp) + 1)
        return sizes

    def _has_room(self, base: Execution, size: int) -> bool:
        question, capacity = self._least, self._question.cluster.gpu.usable_bytes
        alike = self._bounds.alike(question.cluster, base)
        rung = self._bounds.untimed(alike, size=size, micros=1)
        if self._bounds.bytes(question.cluster, base, rung) > capacity:
            return False
        one = replace(sized(base, question.job, question.model, size), gradient_accumulation_steps=1)
        return question.peaks.fits(one, capacity)


def _with_one_micro_batch(base: Execution) -> Schedule:
    """An order of a pipeline that holds the same where a step is one micro-batch: of those that do, always the same."""
    schedule = base.layout.schedule
    return schedule if schedule == "interleaved" or base.postpones_reduction else "1f1b"
