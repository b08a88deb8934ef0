"""Lower bounds of time and memory, found without a schedule or an inventory of every rank: what the search leaves out
by them could not have been chosen."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from shardwise.plan.choices import sized, sizes_on
from shardwise.plan.climbs import Climb, Reach, Rung, climb, reach_of, reach_of_more
from shardwise.plan.endings import least_on_host
from shardwise.plan.links import group_of
from shardwise.plan.needs import ROUNDING, Needs
from shardwise.plan.persistent import weight_degree
from shardwise.plan.pieces import PieceMaker, Pieces
from shardwise.plan.question import Question, at_mean_length, work_on
from shardwise.plan.tempo import Leanest, Tempo
from shardwise.plan.traffic import Loads, Traffic, loads_of
from shardwise.plan.waits import Waits
from shardwise.plan.work import Work
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution
from shardwise.spec.layout import Layout, Schedule, stages_per_rank

#: A number of executions that are alike, the sequences that a rank sees in a step, and how many sizes it has room for.
_Same = tuple[int, int, int]


class Bounds(Needs):
    """Bounds of one question's executions; what they share is found once.

    Args:
        question: whose.
        timed: bounds of time are asked for, which take most of the work; without, they are 0.
    """

    def __init__(self, question: Question, *, timed: bool = True) -> None:
        super().__init__(question)
        self.timed = timed
        self._numbers: dict[tuple[object, ...], int] = {}
        self._paces: dict[tuple[object, ...], int] = {}
        self._works: dict[int, tuple[Work, Work]] = {}
        self._paced_as: dict[int, int] = {}
        self._makers: dict[int, PieceMaker] = {}
        self._pieces: dict[tuple[int, int], Pieces] = {}
        self._same: dict[tuple[int, int, int], _Same] = {}
        self._ladders: dict[_Same, tuple[Rung, ...]] = {}
        self._tempos: dict[tuple[int, tuple[int, ...]], Tempo] = {}
        self._waits: dict[_Same, Waits] = {}
        self._climbs: dict[tuple[_Same, int, Schedule], Climb] = {}
        self._ends: dict[tuple[int, Schedule], tuple[int, int]] = {}
        self._stepped_on_host: set[int] = set()
        self._fewest: dict[tuple[int, int], int] = {}
        self._on_host: dict[tuple[int, int, int], float] = {}
        self._loads: dict[int, Loads] = {}

    def ladder(self, cluster: Cluster, base: Execution) -> tuple[Rung, ...]:
        """The sizes of micro-batch of an execution, the one that may be fastest first."""
        return self.ladder_of(self.alike(cluster, base), cluster, base.layout.data_world_size)

    def ladder_of(self, alike: int, cluster: Cluster, ranks: int) -> tuple[Rung, ...]:
        """The sizes of executions that share a number, on so many ranks that see different samples."""
        return self._ladder_of(alike, cluster, ranks)[1]

    def _ladder_of(self, alike: int, cluster: Cluster, ranks: int) -> tuple[_Same, tuple[Rung, ...]]:
        """With what is the same for all that have these sizes: of ranks matters only how many sequences each has.

        Forwards are the quotient of the batch, rounded up once or twice alike.
        """
        alike = self._paced_as[alike]
        key = (alike, ranks, cluster.num_gpus)
        if key not in self._same:
            share, sizes = -(-self._question.job.train.global_batch_size // ranks), self._sizes(cluster, ranks, alike)
            same = self._same[key] = (alike, share, len(sizes))
            if same not in self._ladders:
                rungs = (self._rung(size, -(-share // size), alike) for size in sizes)
                self._ladders[same] = tuple(sorted(rungs, key=lambda rung: (rung.seconds, rung.size)))
        same = self._same[key]
        return same, self._ladders[same]

    def climb_of(self, alike: int, cluster: Cluster, *, ranks: int, pp: int, schedule: Schedule) -> Climb:
        """The same sizes in the order of what a step takes at least in a pipeline, or without one."""
        same, ladder = self._ladder_of(alike, cluster, ranks)
        key = (same, pp, schedule)
        if key not in self._climbs:
            self._climbs[key] = climb(ladder, self._steps(same, pp, schedule))
        return self._climbs[key]

    def reach(
        self,
        alike: int,
        cluster: Cluster,
        *,
        ranks: int,
        pp: int,
        schedule: Schedule,
        within: float,
        traffic: Traffic | None = None,
    ) -> Reach | None:
        """What sizes whose step may be over within so many seconds come to at best; None where there is none.

        Args:
            alike: the number of executions.
            cluster: the GPUs.
            ranks: those that see different samples.
            pp: stages of a pipeline.
            schedule: their order.
            within: the seconds.
            traffic: what each block sends for every micro-batch.
        """
        if not self._has_blocks_for(pp, schedule):
            return None
        sizes = self.climb_of(alike, cluster, ranks=ranks, pp=pp, schedule=schedule)
        on_host = self.seconds_on_host(alike, ranks=ranks, pp=pp, schedule=schedule)
        found = reach_of(sizes, within - on_host)
        if found is not None and traffic is not None:
            ladder = self.ladder_of(alike, cluster, ranks)
            each = (self.seconds_sending(rung, traffic, pp=pp, schedule=schedule) for rung in sizes.rungs(ladder))
            found = reach_of_more(sizes, ladder, each, within - on_host)
        return found and found._replace(seconds=found.seconds + on_host)

    def loads_of(self, alike: int) -> Loads:
        """What blocks of executions that share a number load wires and buses with."""
        if alike not in self._loads:
            self._loads[alike] = loads_of(self._works[alike][0])
        return self._loads[alike]

    def seconds_sending(self, rung: Rung, traffic: Traffic, *, pp: int, schedule: Schedule) -> float:
        """Of a step with so much traffic, up to its last backward, at least; 0 where no time is asked for."""
        if rung.pieces is None:
            return 0.0
        block = traffic.over(rung.pieces.forward.seconds, rung.pieces.backward.seconds)
        layers = self._question.model.num_layers
        if pp == 1 or schedule == "sequential":
            return rung.micros * layers * block * ROUNDING
        others, own = self._ends_of(pp, schedule)
        return max(rung.micros * layers / pp, others + rung.micros * own) * block * ROUNDING

    def leanest_of(
        self,
        alike: int,
        *,
        sizes: tuple[int, ...],
        share: int,
        pp: int,
        schedule: Schedule,
        within: float,
        traffic: Traffic | None = None,
    ) -> Leanest:
        """Of a spread's sizes the leanest that are fast enough on any number of GPUs.

        Args:
            alike: the number of executions.
            sizes: the smallest first.
            share: the most sequences that a copy sees in a step.
            pp: stages of a pipeline.
            schedule: their order.
            within: seconds of one copy that would see the whole batch.
            traffic: what each block sends for every micro-batch.
        """
        if not self._has_blocks_for(pp, schedule):
            return ()
        if not self.timed:
            return ((sizes[0], 1),)
        within -= self.seconds_on_host(alike, ranks=1, pp=pp, schedule=schedule)
        tempo = self._tempo(alike, sizes)
        if pp == 1 or schedule == "sequential":
            return tempo.in_turn(within, traffic)
        others, own = self._ends_of(pp, schedule)
        return tempo.in_pipeline(schedule, pp=pp, others=others, own=own, share=share, within=within, traffic=traffic)

    def _has_blocks_for(self, pp: int, schedule: Schedule) -> bool:
        """Whether each stage of a pipeline can hold one."""
        return pp * stages_per_rank(schedule) <= self._question.model.num_layers

    def least_of(self, alike: int, *, sizes: tuple[int, ...], pp: int) -> float:
        """Seconds of one copy that would see the whole batch, which no layout of a spread stays below."""
        return self._tempo(alike, sizes).least / pp * ROUNDING if self.timed else 0.0

    def _tempo(self, alike: int, sizes: tuple[int, ...]) -> Tempo:
        key = (self._paced_as[alike], sizes)
        if key not in self._tempos:
            each = [(size, self.pieces(alike, size)) for size in sizes]
            batch, layers = self._question.job.train.global_batch_size, self._question.model.num_layers
            self._tempos[key] = Tempo(each, batch=batch, num_layers=layers)
        return self._tempos[key]

    def seconds_on_host(self, alike: int, *, ranks: int, pp: int, schedule: Schedule) -> float:
        """Seconds behind its last backward that every rank waits for the host's optimizer, at least: were its states
        sharded over as many ranks as can be.

        Args:
            alike: the number of executions that have the same offload.
            ranks: those that see different samples.
            pp: stages of a pipeline.
            schedule: their order.
        """
        if alike not in self._stepped_on_host:
            return 0.0
        work = self._works[alike][1]
        key = (alike, pp, stages_per_rank(schedule) if pp > 1 else 1)
        if key not in self._on_host:
            self._on_host[key] = least_on_host(work, blocks=self._fewest_blocks(*key[1:])) * ROUNDING
        return self._on_host[key] / (ranks * work.execution.layout.cp)

    def _fewest_blocks(self, pp: int, per_rank: int) -> int:
        """Of all ranks of a pipeline, whose stages go round."""
        if (pp, per_rank) not in self._fewest:
            blocks = self.blocks(pp * per_rank)
            self._fewest[pp, per_rank] = min(sum(blocks[rank::pp]) for rank in range(pp))
        return self._fewest[pp, per_rank]

    def _waits_of(self, same: _Same) -> Waits:
        if same not in self._waits:
            self._waits[same] = Waits(self._ladders[same])
        return self._waits[same]

    def _steps(self, same: _Same, pp: int, schedule: Schedule) -> list[float]:
        """What a step takes at least with each size, in one order of a pipeline or without one."""
        if pp == 1 or schedule == "sequential" or not self.timed:
            return [rung.seconds * ROUNDING for rung in self._ladders[same]]
        others, own = self._ends_of(pp, schedule)
        return [step * ROUNDING for step in self._waits_of(same).steps(schedule, pp=pp, others=others, own=own)]

    def work_of(self, alike: int) -> Work:
        """One of the executions that share a number."""
        return self._works[alike][0]

    def at_mean_length(self, cluster: Cluster, base: Execution) -> Work:
        """An execution at work on sequences of the mean length; most of it is shared with those alike."""
        return replace(self._works[self.alike(cluster, base)][1], cluster=cluster, execution=base)

    def _sizes(self, cluster: Cluster, ranks: int, alike: int) -> tuple[int, ...]:
        """Those that all GPUs together have room for, and the smallest: of huge batches, few."""
        sizes, work = sizes_on(self._question.job, ranks), self._works[alike][0]
        of_one = work.tokens * work.saved * (work.model.num_layers - 1)
        room = cluster.num_gpus * cluster.gpu.usable_bytes
        return sizes[: max(1, bisect_right(sizes, room, key=lambda size: size * of_one))]

    def _rung(self, size: int, micros: int, alike: int) -> Rung:
        if not self.timed:
            return self.untimed(alike, size=size, micros=micros)
        pieces, layers = self.pieces(alike, size), self._question.model.num_layers
        once = layers * (pieces.forward.seconds + pieces.backward.seconds) + pieces.loss.seconds
        return self.untimed(alike, size=size, micros=micros)._replace(seconds=micros * once, pieces=pieces)

    def untimed(self, alike: int, *, size: int, micros: int) -> Rung:
        """Any size of executions that share a number, for what it keeps."""
        longest = self._works[alike][0]
        tokens = size * longest.tokens
        return Rung(0.0, size, micros, None, tokens * longest.saved, tokens * longest.saved_whole)

    def pieces(self, alike: int, size: int) -> Pieces:
        """Those of executions that share a number, for so many sequences."""
        alike = self._paced_as[alike]
        if (alike, size) not in self._pieces:
            execution = sized(self._works[alike][1].execution, self._question.job, self._question.model, size)
            self._pieces[alike, size] = self._makers[alike].of(execution)
        return self._pieces[alike, size]

    def alike(self, cluster: Cluster, base: Execution) -> int:
        """A number shared by executions whose blocks take equally long for one micro-batch and keep as many bytes.

        They have one offload, which neither depends on but by whether weights come to the GPU unit by unit.
        """
        layout = base.layout
        talking = [group_of(cluster, layout, axis) for axis in ("tp", "cp") if getattr(layout, axis) > 1]
        gathers = (weight_degree(layout) > 1, base.gathers_weights)
        key = (layout.tp, layout.cp, *talking, *gathers, base.gradient_checkpointing)
        alike = self._numbers.setdefault((*key, base.offload), len(self._numbers))
        if alike not in self._works:
            self._paced_as[alike] = self._paces.setdefault(key, alike)
            work = work_on(self._question, cluster, base)
            mean = at_mean_length(self._question, work)
            self._works[alike], self._makers[alike] = (work, mean), PieceMaker(mean)
            if base.optimizer_on_host:
                self._stepped_on_host.add(alike)
        return alike

    def _ends_of(self, pp: int, schedule: Schedule) -> tuple[int, int]:
        """Blocks of the first stages of all ranks but the last, and of all stages of that."""
        if (pp, schedule) not in self._ends:
            layout = Layout(pp=pp, schedule=schedule)
            blocks = self.blocks(layout.num_stages)
            own = sum(blocks[stage] for stage in layout.stages_of(pp - 1))
            self._ends[pp, schedule] = (sum(blocks[: pp - 1]), own)
        return self._ends[pp, schedule]

    def has_room(self, cluster: Cluster, base: Execution) -> bool:
        """Whether any layout on so many GPUs or fewer could fit, by what surely is on all of them and on one.

        Together they hold a copy's weights and optimizer states, and what one micro-batch saves; one of them holds the
        logits of its own slice of a sequence; and one has the embedding, or the head, but for slices of it.

        Args:
            cluster: the GPUs.
            base: an execution on one of them, at a micro-batch of one.
        """
        model, gpus, capacity = self._question.model, cluster.num_gpus, cluster.gpu.usable_bytes
        work, totals = self._works[self.alike(cluster, base)][0], self.totals_of(cluster, base)
        (size, *_) = sizes_on(self._question.job, self._question.job.train.global_batch_size)
        saved = size * self._question.length * work.saved * (model.num_layers - 1)
        if (totals.weights + totals.optimizer + saved) * ROUNDING > gpus * capacity:
            return False
        end = totals.travelling_end / min(gpus, model.num_attention_heads)
        return max(end, self.logits(Layout(cp=gpus), size)) * ROUNDING <= capacity
