"""Lower bounds of memory, found without an inventory of every rank: what does not fit by them does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.plan.choices import sized
from shardwise.plan.climbs import Rung
from shardwise.plan.instants import LOGIT_COPIES_BACKWARD
from shardwise.plan.inventory import Unit
from shardwise.plan.margins import context_bytes, reserved_shares, segment_bytes
from shardwise.plan.memory import holdings_of
from shardwise.plan.persistent import Holding, shard_degree, weight_degree
from shardwise.plan.question import Question, work_on
from shardwise.plan.tensors import Place
from shardwise.plan.types import FLOAT32_BYTES
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution, positions_at_once
from shardwise.spec.layout import Layout, Schedule
from shardwise.spec.stages import stage_blocks

#: Sums are taken in another order than the forecast takes them.
ROUNDING = 1 - 1e-9


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """Bytes that all ranks of one copy hold together.

    Attributes:
        block_weights: of the blocks alone, at least; as the next two.
        casts: copies of the blocks' trained matrices in the compute type, where nothing is sharded.
        travelling: weights of the blocks when shards of them are brought together.
        travelling_block: of the block for which that is least.
        travelling_root: weights of what lies outside the blocks, likewise.
        travelling_end: the larger of what lies before the blocks and what lies behind them, likewise.
    """

    weights: int
    gradients: int
    optimizer: int
    block_weights: int
    block_gradients: int
    block_optimizer: int
    casts: float
    travelling: float
    travelling_block: float
    travelling_root: float
    travelling_end: float


#: A pipeline rank, how many pairs it has in flight, and without how many blocks at work, which are counted apart.
_Flying = tuple[int, int, int]
#: Of a ladder the smallest size, what is in flight on the ranks looked at, and whether gradients pile up.
_Leanest = tuple[Rung, list[_Flying], bool]


class Needs:
    """Bytes that one question's executions need at least; what they share is found once."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._totals: dict[tuple[object, ...], _Totals] = {}
        self._stages: dict[int, tuple[int, ...]] = {}
        self._ranks: dict[tuple[int, int], tuple[int, ...]] = {}
        self._by_rank: dict[tuple[object, ...], list[tuple[float, float]]] = {}
        self._leanest: dict[tuple[int, Schedule, int], tuple[tuple[Rung, ...], _Leanest]] = {}

    def bytes(self, cluster: Cluster, base: Execution, rung: Rung) -> float:
        """Of the upper end on the rank that needs most: what the mean rank reserves, and what a few do.

        What is reserved is a sum over parts, each times a share of at least one, at every instant; so the mean over
        ranks of what some of them surely hold is a bound for the fullest.
        """
        return self._bytes_of(cluster, base, rung, bare=False)

    def bytes_however_shared(self, cluster: Cluster, base: Execution, rung: Rung) -> float:
        """The same of all executions that differ from one that shards all over all copies in how these share the data
        out: none holds less, and what sharding itself takes is not counted."""
        return self._bytes_of(cluster, base, rung, bare=True)

    def _bytes_of(self, cluster: Cluster, base: Execution, rung: Rung, *, bare: bool) -> float:
        layout = base.layout
        pairs = [(rank, _in_flight(layout, rung.micros, rank=rank)) for rank in self._looked_at(layout)]
        # The model's first block need not keep all; elsewhere the one at work is counted apart.
        flying = [(rank, count, 1 if rank else count) for rank, count in pairs]
        return self._bytes(cluster, base, rung, flying=flying, piled=_piles_up(layout, rung.micros), bare=bare)

    def _bytes(
        self,
        cluster: Cluster,
        base: Execution,
        rung: Rung,
        *,
        flying: Sequence[_Flying],
        piled: bool,
        bare: bool = False,
    ) -> float:
        layout, totals = base.layout, self.totals_of(cluster, base)
        shards, kept = shard_degree(layout), weight_degree(layout)
        gathers = kept > 1 and not bare
        shares = reserved_shares(sharded=gathers)
        stays, passes, context = shares["weights"], shares["activations"], context_bytes(cluster, layout)
        outside = context * shares["context"] + segment_bytes(context)
        layers, slices = self._question.model.num_layers, layout.tp * layout.pp
        states, gradients = totals.weights / kept + totals.optimizer / shards, totals.gradients / kept / slices
        whole = totals.travelling / slices if gathers and not layout.reshard_after_forward else 0.0
        if gathers and layout.pp == 1:
            whole += totals.travelling_root / slices
        logits = self.logits(layout, rung.size)
        if layout.pp == 1:
            whole += logits
        during = passes * (whole + rung.saved * (layers - 1) / layout.pp)
        during += stays * gradients if piled and layout.pp == 1 else 0.0
        most = max(stays * states / slices + max(stays * gradients, during), passes * logits)
        # The last forward of a stage, whose last block keeps all until it is through.
        for rank, pairs, without in flying:
            blocks = self.blocks(layout.num_stages)[rank]
            sliced = blocks / layers / layout.tp
            weights, optimizer = self._held_by_blocks(cluster, base, rank)
            stay = (weights / kept + optimizer / shards) / layout.tp
            stay += totals.block_gradients / kept * sliced if piled else 0.0
            moving = rung.saved * (blocks * pairs - without) + rung.at_work
            if gathers or (base.gathers_weights and not bare):
                units = min(2.0, blocks) if layout.reshard_after_forward else blocks + 1
                moving += units * totals.travelling_block / layout.tp
            elif not bare:
                moving += totals.casts * sliced
            most = max(most, stays * stay + passes * moving)
        if layout.pp > 1:
            # Whole, or made whole in turn, where the first micro-batch enters and where its logits are made.
            most = max(most, min(stays, passes) * totals.travelling_end / layout.tp)
        return (outside + most) * ROUNDING

    def _held_by_blocks(self, cluster: Cluster, base: Execution, rank: int) -> tuple[float, float]:
        """Weights and optimizer states of the blocks of a pipeline rank, were nothing sharded or sliced, at least."""
        layout, totals = base.layout, self.totals_of(cluster, base)
        if len(self._question.inventory.blocks) == 1 or layout.pp == 1:
            share = self.blocks(layout.num_stages)[rank] / self._question.model.num_layers
            return totals.block_weights * share, totals.block_optimizer * share
        key = (cluster.gpu.kind, base.offload, layout.pp, layout.num_stages)
        if key not in self._by_rank:
            work = self._unsharded(cluster, base, Layout(pp=layout.pp, schedule=layout.schedule))
            self._by_rank[key] = [_of_blocks(work, held) for held in holdings_of(work)]
        return self._by_rank[key][rank]

    def _unsharded(self, cluster: Cluster, base: Execution, layout: Layout) -> Work:
        alone = sized(base, self._question.job, self._question.model, 1)
        return work_on(self._question, cluster, replace(alone, layout=layout))

    def logits(self, layout: Layout, size: int) -> float:
        """Of the loss's backward, where head and loss are, at least: what one chunk of the positions takes."""
        tokens, model = size * -(-self._question.length // layout.cp), self._question.model
        positions = positions_at_once(tokens, loss=self._question.job.train.loss, plain_head=model.plain_head)
        return positions * model.vocab_size * FLOAT32_BYTES * LOGIT_COPIES_BACKWARD

    def least_bytes(self, cluster: Cluster, base: Execution, ladder: tuple[Rung, ...]) -> float:
        """What no size of a ladder goes below: the smallest, with no more sequences in flight than any of them has."""
        smallest, flying, piled = self._leanest_of(base.layout, ladder)
        return self._bytes(cluster, base, smallest, flying=flying, piled=piled)

    def _leanest_of(self, layout: Layout, ladder: tuple[Rung, ...]) -> _Leanest:
        """Many layouts share a ladder; it is kept with what is found, so that no other takes its place in memory."""
        key = (id(ladder), layout.schedule, layout.pp)
        if key not in self._leanest:
            smallest = min(ladder, key=lambda rung: rung.size)
            # Of larger sizes a block more is counted apart.
            flying = [(rank, count, count) for rank, count in self._pairs_of(layout, ladder, smallest)]
            piled = _piles_up(layout, min(rung.micros for rung in ladder))
            self._leanest[key] = (ladder, (smallest, flying, piled))
        return self._leanest[key][1]

    def _pairs_of(self, layout: Layout, ladder: tuple[Rung, ...], smallest: Rung) -> Iterator[tuple[int, int]]:
        """How many of the smallest size each rank that is looked at keeps at least, with any size of a ladder."""
        for rank in self._looked_at(layout):
            yield (
                rank,
                min(rung.size * _in_flight(layout, rung.micros, rank=rank) for rung in ladder) // smallest.size,
            )

    def _looked_at(self, layout: Layout) -> tuple[int, ...]:
        """Pipeline ranks one of which is likely to be the fullest: the first ones, which may hold few blocks, and the
        first of those with most."""
        key = (layout.pp, layout.num_stages)
        if key not in self._ranks:
            first, most = range(min(2, layout.pp)), set[int]()
            if layout.num_stages == layout.pp:
                blocks = self.blocks(layout.pp)
                most = {blocks.index(max(blocks))}
            self._ranks[key] = (*first, *most.difference(first))
        return self._ranks[key]

    def totals_of(self, cluster: Cluster, base: Execution) -> _Totals:
        """Of an execution with such an offload."""
        key = (cluster.gpu.kind, base.offload)
        if key not in self._totals:
            work = self._unsharded(cluster, base, Layout())
            (held,) = holdings_of(work)
            root, types = work.inventory.root, work.types
            block_weights, block_optimizer = _of_blocks(work, held)
            alike = len(work.inventory.blocks) == 1
            casts = work.inventory.over_blocks(lambda unit: unit.trained_matrix_elements) * types.compute
            self._totals[key] = _Totals(
                weights=held.weights,
                gradients=held.gradients,
                optimizer=held.optimizer,
                block_weights=block_weights,
                block_gradients=max(0, held.gradients - root.trained_elements * types.trainable) if alike else 0,
                block_optimizer=block_optimizer,
                casts=casts if alike and work.setting.casts else 0.0,
                travelling=work.inventory.over_blocks(lambda unit: unit.gathered_bytes(types)),
                travelling_block=min(unit.gathered_bytes(types) for _, unit in work.inventory.blocks),
                travelling_root=root.gathered_bytes(types),
                travelling_end=max(_at_end(root, place).gathered_bytes(types) for place in ("front", "back")),
            )
        return self._totals[key]

    def blocks(self, num_stages: int) -> tuple[int, ...]:
        """How many each of so many stages holds."""
        if num_stages not in self._stages:
            spans = stage_blocks(self._question.model, num_stages=num_stages)
            self._stages[num_stages] = tuple(len(span) for span in spans)
        return self._stages[num_stages]


def _of_blocks(work: Work, held: Holding) -> tuple[int, int]:
    """Bytes of weights and optimizer states that are surely the blocks': without the root tensors at their largest."""
    root = work.inventory.root
    states = root.trained_elements * 2 * work.types.trainable
    return max(0, held.weights - root.elements * FLOAT32_BYTES), max(0, held.optimizer - states)


def _in_flight(layout: Layout, micros: int, *, rank: int) -> int:
    """Pairs of a stage and a micro-batch whose saved activations a pipeline rank keeps together, at least."""
    match layout.schedule:
        case "gpipe":
            return micros
        case "1f1b":
            return min(micros, layout.pp - rank)
        case "zero_bubble":
            return min(micros, layout.pp)
        case "interleaved":
            return min(2 * micros, 3 * layout.pp - 1 - 2 * rank)
        case _:
            return 1


def _piles_up(layout: Layout, micros: int) -> bool:
    """Whether gradients of an earlier micro-batch surely lie there while the first rank keeps most."""
    most = {"gpipe": micros, "sequential": 1, "interleaved": 2 * layout.pp - 1}
    return micros > (most.get(layout.schedule, layout.pp) if layout.pp > 1 else 1)


def _at_end(root: Unit, place: Place) -> Unit:
    """What of the tensors outside the blocks lies at one end of a pipeline."""
    return Unit(tensors=tuple(tensor for tensor in root.tensors if tensor.place == place))
