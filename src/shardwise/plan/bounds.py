"""Lower bounds of time and memory, found without a schedule or an inventory of every rank: what the search leaves out
by them could not have been chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from shardwise.plan.choices import micro_batch_sizes, sized, sizes_on
from shardwise.plan.instants import LOGIT_COPIES_BACKWARD
from shardwise.plan.inventory import Unit
from shardwise.plan.links import group_of
from shardwise.plan.margins import context_bytes, reserved_shares, segment_bytes
from shardwise.plan.memory import holdings_of
from shardwise.plan.persistent import shard_degree, weight_degree
from shardwise.plan.pieces import PieceMaker, Pieces
from shardwise.plan.question import Question, at_mean_length, work_on
from shardwise.plan.tensors import Place
from shardwise.plan.types import FLOAT32_BYTES
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import CHUNK_TOKENS, Execution, accumulation_steps
from shardwise.spec.layout import Layout
from shardwise.spec.stages import stage_blocks

#: Sums are taken in another order than the forecast takes them.
_ROUNDING = 1 - 1e-9


class Rung(NamedTuple):
    """One size of micro-batch.

    Attributes:
        seconds: all forwards and backwards of a step, on one rank that has all layers; 0 where no time is asked for.
        pieces: what these are made of; None where no time is asked for.
        saved: bytes that the mean block of one micro-batch keeps for its backward.
    """

    seconds: float
    size: int
    micros: int
    pieces: Pieces | None
    saved: float


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """Bytes that all ranks of one copy hold together.

    Attributes:
        blocks: weights and optimizer states of the blocks, at least.
        travelling: weights of the blocks when shards of them are brought together.
        travelling_root: weights of what lies outside the blocks, likewise.
        travelling_end: the larger of what lies before the blocks and what lies behind them, likewise.
    """

    weights: int
    gradients: int
    optimizer: int
    blocks: int
    travelling: float
    travelling_root: float
    travelling_end: float


class Bounds:
    """Bounds of one question's executions; what they share is found once.

    Args:
        question: whose.
        timed: bounds of time are asked for, which take most of the work; without, they are 0.
    """

    def __init__(self, question: Question, *, timed: bool = True) -> None:
        self._question = question
        self._timed = timed
        self._numbers: dict[tuple[object, ...], int] = {}
        self._works: dict[int, tuple[Work, Work]] = {}
        self._makers: dict[int, PieceMaker] = {}
        self._pieces: dict[tuple[int, int], Pieces] = {}
        self._ladders: dict[tuple[int, int, int], tuple[Rung, ...]] = {}
        self._totals: dict[tuple[object, ...], _Totals] = {}
        self._stages: dict[int, tuple[int, ...]] = {}

    def ladder(self, cluster: Cluster, base: Execution) -> tuple[Rung, ...]:
        """The sizes of micro-batch of an execution, the one that may be fastest first."""
        return self.ladder_of(self.alike(cluster, base), cluster, base.layout)

    def ladder_of(self, alike: int, cluster: Cluster, layout: Layout) -> tuple[Rung, ...]:
        """The sizes of executions of a layout that share a number."""
        key = (alike, layout.data_world_size, cluster.num_gpus)
        if key not in self._ladders:
            rungs = (self._rung(layout, size, alike) for size in self._sizes(cluster, layout, alike))
            self._ladders[key] = tuple(sorted(rungs, key=lambda rung: (rung.seconds, rung.size)))
        return self._ladders[key]

    def work_of(self, alike: int) -> Work:
        """One of the executions that share a number."""
        return self._works[alike][0]

    def at_mean_length(self, cluster: Cluster, base: Execution) -> Work:
        """An execution at work on sequences of the mean length; most of it is shared with those alike."""
        return replace(self._works[self.alike(cluster, base)][1], cluster=cluster, execution=base)

    def _sizes(self, cluster: Cluster, layout: Layout, alike: int) -> list[int]:
        """Those that all GPUs together have room for, and the smallest: of huge batches, few."""
        smallest, *others = micro_batch_sizes(self._question.job, layout)
        work = self._works[alike][0]
        of_one = work.tokens * work.saved * (work.model.num_layers - 1)
        return [smallest, *(size for size in others if size * of_one <= cluster.num_gpus * cluster.gpu.memory_bytes)]

    def _rung(self, layout: Layout, size: int, alike: int) -> Rung:
        longest = self._works[alike][0]
        micros = accumulation_steps(
            global_batch_size=self._question.job.train.global_batch_size,
            micro_batch_size=size,
            data_world_size=layout.data_world_size,
        )
        saved = size * longest.tokens * longest.saved
        if not self._timed:
            return Rung(0.0, size, micros, None, saved)
        pieces = self.pieces(alike, size)
        once = longest.model.num_layers * (pieces.forward.seconds + pieces.backward.seconds) + pieces.loss.seconds
        return Rung(micros * once, size, micros, pieces, saved)

    def pieces(self, alike: int, size: int) -> Pieces:
        """Those of executions that share a number, for so many sequences."""
        if (alike, size) not in self._pieces:
            execution = sized(self._works[alike][1].execution, self._question.job, self._question.model, size)
            self._pieces[alike, size] = self._makers[alike].of(execution)
        return self._pieces[alike, size]

    def alike(self, cluster: Cluster, base: Execution) -> int:
        """A number shared by executions whose blocks take equally long for one micro-batch and keep as many bytes."""
        layout = base.layout
        talking = [group_of(cluster, layout, axis) for axis in ("tp", "cp") if getattr(layout, axis) > 1]
        key = (*talking, weight_degree(layout) > 1, base.gradient_checkpointing, base.offload)
        alike = self._numbers.setdefault(key, len(self._numbers))
        if alike not in self._works:
            work = work_on(self._question, cluster, base)
            mean = at_mean_length(self._question, work)
            self._works[alike], self._makers[alike] = (work, mean), PieceMaker(mean)
        return alike

    def seconds(self, base: Execution, rung: Rung) -> float:
        """Of a step, at least."""
        layout = base.layout
        if layout.pp == 1 or layout.schedule == "sequential" or rung.pieces is None:
            return rung.seconds * _ROUNDING
        return max(rung.seconds / layout.pp, self._through_last(layout, rung, rung.pieces)) * _ROUNDING

    def _through_last(self, layout: Layout, rung: Rung, pieces: Pieces) -> float:
        """The last rank waits for the first micro-batch, does its own work, and the others end behind its last."""
        blocks = self.blocks(layout.num_stages)
        ahead, back = pieces.forward.seconds, pieces.backward.seconds
        behind = back - pieces.weights if layout.schedule == "zero_bubble" else back
        others = sum(blocks[: layout.pp - 1])
        own = sum(blocks[stage] for stage in layout.stages_of(layout.pp - 1))
        return others * (ahead + behind) + rung.micros * (own * (ahead + back) + pieces.loss.seconds)

    def blocks(self, num_stages: int) -> tuple[int, ...]:
        """How many each of so many stages holds."""
        if num_stages not in self._stages:
            spans = stage_blocks(self._question.model, num_stages=num_stages)
            self._stages[num_stages] = tuple(len(span) for span in spans)
        return self._stages[num_stages]

    def bytes(self, cluster: Cluster, base: Execution, rung: Rung) -> float:
        """Of the upper end on the rank that needs most: what the mean rank reserves, and what the first one does.

        What is reserved is a sum over parts, each times a share of at least one, at every instant; so the mean over
        ranks of what some of them surely hold is a bound for the fullest.
        """
        layout, totals = base.layout, self._totals_of(cluster, base)
        shards, kept = shard_degree(layout), weight_degree(layout)
        shares = reserved_shares(sharded=kept > 1)
        stays, passes, context = shares["weights"], shares["activations"], context_bytes(cluster, layout)
        outside = context * shares["context"] + segment_bytes(context)
        layers, slices = self._question.model.num_layers, layout.tp * layout.pp
        states, gradients = totals.weights / kept + totals.optimizer / shards, totals.gradients / kept / slices
        whole = totals.travelling / slices if kept > 1 and not layout.reshard_after_forward else 0.0
        if kept > 1 and layout.pp == 1:
            whole += totals.travelling_root / slices
        piled = gradients if rung.micros > 1 and layout.pp == 1 else 0.0
        logits = self._logits(layout, rung.size)
        if layout.pp == 1:
            whole += logits
        during = passes * (whole + rung.saved * (layers - 1) / layout.pp) + stays * piled
        most = max(stays * states / slices + max(stays * gradients, during), passes * logits)
        if layout.pp > 1:
            blocks = self.blocks(layout.num_stages)[0]
            held = totals.blocks * blocks / layers / layout.tp / shards
            moving = rung.saved * (blocks - 1) * self._in_flight(layout, rung.micros)
            if kept > 1 and not layout.reshard_after_forward:
                moving += totals.travelling * blocks / layers / layout.tp
            # Whole, or made whole in turn, where the first micro-batch enters and where its logits are made.
            most = max(most, stays * held + passes * moving, min(stays, passes) * totals.travelling_end / layout.tp)
        return (outside + most) * _ROUNDING

    def _logits(self, layout: Layout, size: int) -> float:
        """Of the loss's backward, where head and loss are, at least: what one chunk of the positions takes."""
        positions, model = size * -(-self._question.length // layout.cp), self._question.model
        if self._question.job.train.loss != "full" and model.plain_head:
            positions = min(positions, CHUNK_TOKENS)
        return positions * model.vocab_size * FLOAT32_BYTES * LOGIT_COPIES_BACKWARD

    def least_bytes(self, cluster: Cluster, base: Execution, ladder: tuple[Rung, ...]) -> float:
        """What no size of a ladder goes below: the smallest, with no more sequences in flight than any of them has."""
        smallest = min(ladder, key=lambda rung: rung.size)
        sequences = min(rung.size * self._in_flight(base.layout, rung.micros) for rung in ladder)
        return self.bytes(cluster, base, smallest._replace(micros=sequences // smallest.size))

    def has_room(self, cluster: Cluster, base: Execution) -> bool:
        """Whether any layout on so many GPUs or fewer could fit, by what surely is on all of them and on one.

        Together they hold a copy's weights and optimizer states, and what one micro-batch saves; one of them holds the
        logits of its own slice of a sequence; and one has the embedding, or the head, but for slices of it.

        Args:
            cluster: the GPUs.
            base: an execution on one of them, at a micro-batch of one.
        """
        model, gpus, capacity = self._question.model, cluster.num_gpus, cluster.gpu.memory_bytes
        work, totals = self._works[self.alike(cluster, base)][0], self._totals_of(cluster, base)
        (size, *_) = sizes_on(self._question.job, self._question.job.train.global_batch_size)
        saved = size * self._question.length * work.saved * (model.num_layers - 1)
        if (totals.weights + totals.optimizer + saved) * _ROUNDING > gpus * capacity:
            return False
        end = totals.travelling_end / min(gpus, model.num_attention_heads)
        return max(end, self._logits(Layout(cp=gpus), size)) * _ROUNDING <= capacity

    @staticmethod
    def _in_flight(layout: Layout, micros: int) -> int:
        """Micro-batches whose saved activations the first stage keeps together, at least."""
        match layout.schedule:
            case "gpipe":
                return micros
            case "1f1b" | "zero_bubble":
                return min(micros, layout.pp)
            case _:
                return 1

    def _totals_of(self, cluster: Cluster, base: Execution) -> _Totals:
        key = (cluster.gpu.kind, base.offload)
        if key not in self._totals:
            alone = sized(base, self._question.job, self._question.model, 1)
            work = work_on(self._question, cluster, replace(alone, layout=Layout()))
            (held,) = holdings_of(work)
            root, types = work.inventory.root, work.types
            # Root tensors are taken at their largest, so that what is left are the blocks' bytes at least.
            outer = root.elements * FLOAT32_BYTES + root.trained_elements * 2 * types.trainable
            self._totals[key] = _Totals(
                weights=held.weights,
                gradients=held.gradients,
                optimizer=held.optimizer,
                blocks=max(0, held.weights + held.optimizer - outer),
                travelling=work.inventory.over_blocks(lambda unit: unit.gathered_bytes(types)),
                travelling_root=root.gathered_bytes(types),
                travelling_end=max(_at_end(root, place).gathered_bytes(types) for place in ("front", "back")),
            )
        return self._totals[key]


def _at_end(root: Unit, place: Place) -> Unit:
    """What of the tensors outside the blocks lies at one end of a pipeline."""
    return Unit(tensors=tuple(tensor for tensor in root.tensors if tensor.place == place))
