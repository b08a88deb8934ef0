"""Peaks of very many executions of one job: what they share is computed once.

At every instant what passes is affine in the tokens of a micro-batch and in the positions whose logits are alive
together, and each further micro-batch in flight adds the same. So an instant that was evaluated three times answers for
all micro-batches; and it answers for all degrees of data parallelism, which change what stays. The upper end found so
is the one that `forecast_memory` finds; the tests hold the two equal. Ranks that cannot be the
fullest are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from shardwise.plan.instants import (
    INSTANTS_OF_STEP,
    Gradients,
    Instant,
    gradient_bytes,
    instants_beside,
    instants_of_micro_batch,
)
from shardwise.plan.inventory import Inventory
from shardwise.plan.margins import context_bytes
from shardwise.plan.memory import scene_of
from shardwise.plan.parts import Part, parts
from shardwise.plan.passing import Ceiling, Passing, Values, passing
from shardwise.plan.persistent import Holding, holdings, shard_degree, weight_degree
from shardwise.plan.saved import INPUT_BYTES, Alive, at_work, of_a_head, of_a_pair
from shardwise.plan.scene import Flight, Scene, flights
from shardwise.plan.types import TYPES
from shardwise.plan.work import Work, work_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution, positions_at_once
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout, stages_per_rank
from shardwise.spec.model import ModelShape

_Alive = Callable[[Scene], Alive]
#: Which gradients there are at each of some instants, and what passes.
_Instants = tuple[tuple[Gradients, Passing], ...]


class _Rank(NamedTuple):
    """A rank that may be the fullest: what stays there, and what passes once a step's gradients are complete.

    Attributes:
        place: tells distinct parts apart.
        states: bytes of weights with their padding, and of optimizer states.
        gradients: bytes of those that exist.
    """

    place: object
    holding: Holding
    states: int
    gradients: dict[Gradients, float]
    step: _Instants


class _Kept:
    """Ranks that are made when they are asked for, each once: most of what does not fit is too large for the first."""

    def __init__(self, ranks: Iterator[_Rank]) -> None:
        self._left = ranks
        self._made: list[_Rank] = []

    def __iter__(self) -> Iterator[_Rank]:
        for number in count():
            if number == len(self._made):
                rank = next(self._left, None)
                if rank is None:
                    return
                self._made.append(rank)
            yield self._made[number]


class _MicroBatch(NamedTuple):
    """What passes while a micro-batch is at work: at each instant, at all of them, and for each other one in flight."""

    instants: _Instants
    always: Passing
    pair: Passing
    head: Passing


class Peaks:
    """Peaks of a job's executions on a cluster, remembered by what they depend on."""

    def __init__(self, job: Job, *, model: ModelShape, cluster: Cluster, inventory: Inventory) -> None:
        self._job = job
        self._model = model
        self._cluster = cluster
        self._inventory = inventory
        self._parts: dict[object, tuple[Part, ...]] = {}
        self._held: dict[object, tuple[Holding, ...]] = {}
        self._ranks: dict[object, _Kept] = {}
        self._works: dict[object, Work] = {}
        self._within: dict[object, _MicroBatch] = {}
        self._beside: dict[object, _Instants] = {}
        self._ceilings: dict[object, Ceiling] = {}

    def high_bytes(self, execution: Execution) -> int:
        """What `MemoryForecast.peak_high_bytes` is for the execution."""
        return round(max(self._highs(execution)))

    def fits(self, execution: Execution, capacity: int) -> bool:
        """Whether that is no more than so many bytes; the first instant that is more says no."""
        return all(round(high) <= capacity for high in self._highs(execution))

    def _highs(self, execution: Execution) -> Iterator[float]:
        """The upper ends of the ranks that may be the fullest, at some instants in turn; likely ones first."""
        layout, micros = execution.layout, execution.gradient_accumulation_steps
        tokens = execution.micro_batch_size * -(-self._job.data.max_length // layout.cp)
        positions = positions_at_once(tokens, loss=execution.loss, plain_head=self._model.plain_head)
        like = _alike(execution)
        work = self._work(execution, like)
        ceiling = self._ceiling(work, layout)
        for rank in self._fullest(execution, work, like):
            nothing: Values = (0.0, 0.0, 0.0, 0.0)
            for flight in flights(layout, pp=rank.holding.part.pp, num_micro_batches=micros):
                micro = self._micro_batch(work, rank, flight, like, chunks=tokens > positions)
                others = _others(micro, flight, nothing, tokens, positions)
                yield _highest(micro.instants, rank, ceiling, others, tokens, positions)
            between: Values = (0.0, 0.0, 0.0, tokens * INPUT_BYTES)
            for instants in (rank.step, self._beside_steps(work, rank, like)):
                yield _highest(instants, rank, ceiling, between, tokens, positions)

    def _work(self, execution: Execution, like: object) -> Work:
        if like not in self._works:
            self._works[like] = work_of(
                self._job, model=self._model, cluster=self._cluster, execution=execution, inventory=self._inventory
            )
        return self._works[like]

    def _ceiling(self, work: Work, layout: Layout) -> Ceiling:
        key = (context_bytes(self._cluster, layout), work.sharded)
        if key not in self._ceilings:
            self._ceilings[key] = Ceiling(context=key[0], sharded=key[1])
        return self._ceilings[key]

    def _fullest(self, execution: Execution, work: Work, like: object) -> Iterable[_Rank]:
        """Those ranks of every distinct part that may be the fullest.

        Ranks behind the first hold fewer rows, of slices and of shards: an element missing from a slice is nothing, and
        one missing from a shard is padding. Only where AdamW in 8 bits keeps small tensors' states in 32 may a smaller
        part take more.
        """
        layout, stages = execution.layout, stages_per_rank(execution.layout.schedule)
        key = (like, layout.pp, stages, weight_degree(layout), shard_degree(layout))
        if key not in self._ranks:
            self._ranks[key] = _Kept(
                _rank(scene_of(work, holding, Flight()), place=(layout.pp, stages, number))
                for number, part in enumerate(self._distinct(layout))
                if part.tp.start == 0 or execution.optimizer == "adamw_8bit"
                for holding in self._holdings(part, execution, place=(layout.pp, stages, number))
            )
        return self._ranks[key]

    def _holdings(self, part: Part, execution: Execution, *, place: object) -> tuple[Holding, ...]:
        """What stays on a part, whatever is computed again."""
        layout, precision, optimizer = execution.layout, execution.precision, execution.optimizer
        key = (place, layout.tp, weight_degree(layout), shard_degree(layout), precision, optimizer, execution.offload)
        if key not in self._held:
            self._held[key] = holdings(
                part,
                execution,
                types=TYPES[precision],
                momentum=self._job.train.momentum > 0,
                first_only=optimizer != "adamw_8bit",
                host_apart=self._cluster.gpu.kind == "cuda",
            )
        return self._held[key]

    def _distinct(self, layout: Layout) -> tuple[Part, ...]:
        key = (layout.tp, layout.pp, stages_per_rank(layout.schedule))
        if key not in self._parts:
            self._parts[key] = parts(self._model, self._inventory, layout, distinct=True)
        return self._parts[key]

    def _beside_steps(self, work: Work, rank: _Rank, like: object) -> _Instants:
        key = (like, rank.place)
        if key not in self._beside:
            self._beside[key] = _instants(_probes(scene_of(work, rank.holding, Flight())), instants_beside(work))
        return self._beside[key]

    def _micro_batch(self, work: Work, rank: _Rank, flight: Flight, like: object, *, chunks: bool) -> _MicroBatch:
        whole, fills = work.replicated or flight.gradients, flight.pairs > 1
        key = (like, rank.place, chunks, whole, fills)
        if key not in self._within:
            scenes = _probes(replace(scene_of(work, rank.holding, flight), chunks=chunks))
            self._within[key] = _MicroBatch(
                instants=_instants(scenes, instants_of_micro_batch(rank.holding.part)),
                always=_passing(scenes, at_work),
                pair=_passing(scenes, of_a_pair),
                head=_passing(scenes, of_a_head),
            )
        return self._within[key]


def _alike(execution: Execution) -> tuple[object, ...]:
    """What passes on a part depends on this and on no degree of data parallelism."""
    e, layout = execution, execution.layout
    return (
        layout.tp,
        layout.cp > 1,
        layout.pp > 1,
        layout.data_world_size > 1,
        e.gathers_weights,
        e.postpones_reduction,
        layout.reshard_after_forward,
        layout.min_num_params,
        layout.prefetch,
        e.gradient_checkpointing,
        e.offload,
        e.precision,
        e.optimizer,
        e.loss,
        e.attn_implementation,
    )


def _rank(scene: Scene, *, place: object) -> _Rank:
    holding = scene.holding
    kinds: tuple[Gradients, ...] = ("none", "all", "later", "whole")
    return _Rank(
        place=place,
        holding=holding,
        states=holding.stored + holding.optimizer,
        gradients={kind: gradient_bytes(scene, kind) for kind in kinds},
        step=_instants(_probes(scene), INSTANTS_OF_STEP),
    )


def _probes(scene: Scene) -> tuple[Scene, Scene, Scene]:
    """The scene at nothing, at one token, and at one position."""
    nothing = replace(scene, tokens=0, head_tokens=0)
    return nothing, replace(nothing, tokens=1), replace(nothing, head_tokens=1)


def _passing(scenes: tuple[Scene, Scene, Scene], of: _Alive) -> Passing:
    """Whatever the micro-batch."""
    nothing, token, position = scenes
    return passing(of(nothing), of(token), of(position))


def _instants(scenes: tuple[Scene, Scene, Scene], instants: Iterable[Instant]) -> _Instants:
    return tuple((instant.gradients(scenes[0]), _passing(scenes, instant.passing)) for instant in instants)


def _others(micro: _MicroBatch, flight: Flight, stays: Values, tokens: float, positions: float) -> Values:
    """What is alive at every instant of a micro-batch, with those in flight beside it."""
    terms = [(1, micro.always)]
    if flight.pairs > 1:
        terms += [(flight.pairs - 1, micro.pair), (flight.heads - 1, micro.head)]
    a, b, c, d = stays
    for times, one in terms:
        e, f, g, h = one.at(tokens, positions)
        a, b, c, d = a + times * e, b + times * f, c + times * g, d + times * h
    return a, b, c, d


def _highest(
    instants: _Instants, rank: _Rank, ceiling: Ceiling, others: Values, tokens: float, positions: float
) -> float:
    """The upper end at the fullest of some instants."""
    a, b, c, d = others
    most = 0.0
    for gradients, one in instants:
        e, f, g, h = one.at(tokens, positions)
        high = ceiling.of(rank.states, rank.gradients[gradients] + one.gradients, (a + e, b + f, c + g, d + h))
        most = max(most, high)
    return most
