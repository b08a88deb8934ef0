"""Peaks of very many executions of one job: what they share is computed once.

At every instant what is alive is affine in the tokens of a micro-batch and in the positions whose logits are alive
together, and each further micro-batch in flight adds the same. So an instant that was evaluated three times is a line,
which answers for all micro-batches, and the highest line is the upper end that `forecast_memory` finds; the tests hold
the two equal. Lines below another everywhere are dropped, and of ranks that hold more and less of the same, the one
with less is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from shardwise.plan.instants import INSTANTS_BETWEEN, Instant, instants_of_micro_batch, of_a_head, of_a_pair
from shardwise.plan.inventory import Inventory
from shardwise.plan.lines import Affine, Line, add, affine, highest, line
from shardwise.plan.margins import context_bytes
from shardwise.plan.memory import scene_of
from shardwise.plan.parts import Part, parts
from shardwise.plan.persistent import Holding, holdings
from shardwise.plan.scene import Flight, Scene, flights
from shardwise.plan.types import TYPES
from shardwise.plan.work import Work, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job
from shardwise.spec.layout import CHUNK_TOKENS, Execution, Layout
from shardwise.spec.model import ModelShape

#: Bytes alive at an instant, by part.
_Function = Mapping[str, Affine]


class Peaks:
    """Peaks of a job's executions on parts of a cluster, remembered by what they depend on."""

    def __init__(self, job: Job, *, model: ModelShape, cluster: Cluster, inventory: Inventory) -> None:
        self._job = job
        self._model = model
        self._cluster = cluster
        self._inventory = inventory
        self._numbers: dict[object, int] = {}
        self._parts: dict[object, tuple[Part, ...]] = {}
        self._holdings: dict[object, tuple[Holding, ...]] = {}
        self._works: dict[object, Work] = {}
        self._moments: dict[object, tuple[tuple[_Function, ...], tuple[_Function, ...]]] = {}
        self._within: dict[object, tuple[Line, ...]] = {}
        self._between: dict[object, tuple[Line, ...]] = {}

    def high_bytes(self, execution: Execution) -> int:
        """What `MemoryForecast.peak_high_bytes` is for the execution."""
        tokens = execution.micro_batch_size * -(-self._job.data.max_length // execution.layout.cp)
        positions = tokens
        if execution.loss == "chunked" and self._model.plain_head:
            positions = min(tokens, CHUNK_TOKENS)
        lines = self._lines_of(execution, chunks=tokens > positions)
        return round(max(one.high(tokens, positions) for one in lines))

    def least_bytes(self, execution: Execution) -> int:
        """What no micro-batch and no recompute goes below: what ranks hold between steps, and the context."""
        held = max(h.weights + h.optimizer + h.padding for h in self._fullest(execution))
        return held + context_bytes(self._cluster, execution.layout)

    def _lines_of(self, execution: Execution, *, chunks: bool) -> Iterator[Line]:
        """The lines of parts that may be the fullest; of stages that hold alike, the earliest has most in flight."""
        e = execution
        like = (e.layout, e.gradient_checkpointing, e.offload, e.precision, e.optimizer, e.loss, e.attn_implementation)
        key = self._numbers.setdefault(like, len(self._numbers))
        seen: set[object] = set()
        for holding in self._fullest(e):
            part = holding.part
            # Chunks are a matter of the head.
            stage = (part.num_blocks, len(part.span), part.is_first, part.is_last and 1 + chunks)
            place = (key, stage, part.tp.start, holding.shards.start)
            if place not in self._between:
                self._between[place] = self._lines_between(execution, holding, key=key)
            if place not in seen:
                yield from self._between[place]
            for flight in flights(e.layout, pp=part.pp, num_micro_batches=e.gradient_accumulation_steps):
                if (place, flight.gradients) not in seen:
                    seen |= {place, (place, flight.gradients)}
                    drawn = (place, flight)
                    if drawn not in self._within:
                        scene = scene_of(self._work(execution, key), holding, flight)
                        self._within[drawn] = self._lines_within(replace(scene, chunks=chunks), place)
                    yield from self._within[drawn]

    def _work(self, execution: Execution, key: int) -> Work:
        if key not in self._works:
            self._works[key] = work_of(
                self._job, model=self._model, cluster=self._cluster, execution=execution, inventory=self._inventory
            )
        return self._works[key]

    def _lines_between(self, execution: Execution, holding: Holding, *, key: int) -> tuple[Line, ...]:
        """Of what happens after the last backward."""
        scene = scene_of(self._work(execution, key), holding, Flight())
        return tuple(highest(_line(scene, function) for function in _functions(scene, INSTANTS_BETWEEN)))

    def _lines_within(self, scene: Scene, place: object) -> tuple[Line, ...]:
        """Of what happens within a micro-batch, others beside it."""
        key = (place, scene.whole, scene.fills)
        if key not in self._moments:
            alone = replace(scene, flight=replace(scene.flight, pairs=1, heads=1))
            self._moments[key] = (
                tuple(_functions(alone, instants_of_micro_batch(scene.part))),
                tuple(_functions(alone, (("pair", of_a_pair), ("head", of_a_head)))),
            )
        within, (pair, head) = self._moments[key]
        if scene.flight.pairs == 1:
            return tuple(highest(_line(scene, function) for function in within))
        more = add(add({}, pair, times=scene.flight.pairs - 1), head, times=scene.flight.heads - 1)
        return tuple(highest(_line(scene, add(function, more)) for function in within))

    def _fullest(self, execution: Execution) -> tuple[Holding, ...]:
        """The first rank of every part, which holds at least as much as the others of it.

        Where states of small tensors are larger than those of large ones, any rank may be the fullest.
        """
        layout, first_only = execution.layout, execution.optimizer != "adamw_8bit"
        key = (layout, execution.precision, execution.optimizer, execution.offload)
        if key not in self._holdings:
            types, momentum = TYPES[execution.precision], self._job.train.momentum > 0
            self._holdings[key] = tuple(
                holding
                for part in self._parts_of(layout)
                if part.tp.start == 0 or not first_only
                for holding in holdings(part, execution, types=types, momentum=momentum, first_only=first_only)
            )
        return self._holdings[key]

    def _parts_of(self, layout: Layout) -> tuple[Part, ...]:
        key = (layout.tp, layout.pp, layout.schedule)
        if key not in self._parts:
            self._parts[key] = parts(self._model, self._inventory, layout)
        return self._parts[key]


def _functions(scene: Scene, named: Iterable[tuple[str, Instant]]) -> Iterator[_Function]:
    """What is alive at each instant of a scene, whatever its micro-batch."""
    at = tuple(replace(scene, tokens=t, head_tokens=p) for t, p in ((0, 0), (1, 0), (0, 1)))
    for _, instant in named:
        yield affine(*(instant(one) for one in at))


def _line(scene: Scene, function: _Function) -> Line:
    context = context_bytes(scene.work.cluster, scene.work.execution.layout)
    return line(function, context=context, sharded=scene.work.sharded)
