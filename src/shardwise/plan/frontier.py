"""Layouts on smaller parts of a cluster that nobody has looked at yet, each family of them with the best that it could
reach: one is opened only as long as that is still of interest.

A family are the layouts of one part of a cluster that spread a copy of the model over as many ranks, in the same way.
They differ in how copies share the data out, and in the order of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf, prod
from typing import Any, NamedTuple

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import bases, sizes_on
from shardwise.plan.pieces import Pieces
from shardwise.plan.products import Choice, copies
from shardwise.plan.question import Question
from shardwise.plan.ranking import figures_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Recompute
from shardwise.spec.layout import Layout, Schedule, stages_per_rank

#: Sums are taken in another order than the forecast takes them.
_ROUNDING = 1 - 1e-9
_FEWEST_OF_A_HYBRID = 4
_SHARING, _PIPELINES = {"ddp", "zero1", "zero2", "fsdp", "hsdp"}, {"pp", "mp"}


class Family(NamedTuple):
    """Layouts that were not looked at, with one of the recomputes that the job leaves open.

    Attributes:
        least: figures of the goal that none of them stays below.
        copy: degrees of the axes whose ranks see the same samples.
        least_in_turn: the same where one rank of a pipeline works at a time.
        alike: by what number `Bounds` knows the pieces of those that shard.
    """

    least: tuple[float, ...]
    cluster: Cluster
    copy: dict[str, Any]
    recompute: Recompute
    alike: int
    least_in_turn: tuple[float, ...]

    @property
    def form(self) -> tuple[bool, ...]:
        """Which axes its layouts have: data, pp, tp, cp."""
        shared = self.cluster.num_gpus > prod(self.copy.values())
        return shared, *(self.copy[axis] > 1 for axis in ("pp", "tp", "cp"))

    @property
    def ranks(self) -> int:
        """Ranks that see different samples."""
        return self.cluster.num_gpus // prod(self.copy.values())

    def leanest(self, strategy: str) -> list[Layout]:
        """The layouts of a strategy of which one needs least: what is sharded most is smallest.

        Of the orders of a pipeline, gpipe and zero_bubble keep no fewer micro-batches in flight than 1f1b. Hybrid
        sharding is taken to shard over half of the ranks, as if there were an even number of them.
        """
        ranks, names = self.ranks, strategy.split(" x ")
        data: dict[str, Any] = {"dp_shard": ranks}
        match names[0]:
            case "ddp":
                data = {"dp_replicate": ranks}
            case "hsdp":
                data = {"dp_shard": ranks // 2, "dp_replicate": 2}
            case "zero1" | "zero2" as zero:
                data |= {"zero_stage": int(zero[-1]), "reshard_after_forward": False}
            case _:
                pass
        if names[0] == "hsdp" and ranks < _FEWEST_OF_A_HYBRID:
            return []
        orders: tuple[Schedule, ...] = ("1f1b", "interleaved") if "pp" in names else ("1f1b",)
        orders = ("sequential",) if "mp" in names else orders
        return [Layout(**self.copy, **data, schedule=one) for one in orders]


def form_of(strategy: str) -> tuple[bool, ...]:
    """Which axes the layouts of a strategy have: data, pp, tp, cp."""
    names = set(strategy.split(" x "))
    return bool(names & _SHARING), bool(names & _PIPELINES), "tp" in names, "cp" in names


def _names(form: tuple[bool, ...]) -> Iterator[str]:
    """The strategies whose layouts have certain axes, as `Layout.strategy` names them."""
    shared, pipelined, *others = form
    inside = [axis for axis, there in zip(("tp", "cp"), others, strict=True) if there]
    for data in _SHARING if shared else ("",):
        for order in _PIPELINES if pipelined else ("",):
            yield " x ".join(name for name in (data, order, *inside) if name) or "single"


class Frontier:
    """The families of some parts of a question's cluster.

    Args:
        question: whose.
        bounds: of the question.
        parts: of its cluster.
    """

    def __init__(self, question: Question, bounds: Bounds, parts: Iterable[Cluster]) -> None:
        self._question = question
        self._bounds = bounds
        self._known: dict[tuple[str, int], bool] = {}
        self._alike: dict[object, tuple[tuple[Recompute, int], ...]] = {}
        self.families = [family for part in parts for family in self._families(part)]

    @property
    def num_parts(self) -> int:
        """Parts of the cluster that have any."""
        return len({family.cluster.num_gpus for family in self.families})

    @property
    def strategies(self) -> set[str]:
        """Names of all that they may hold."""
        return {name for form in {family.form for family in self.families} for name in _names(form)}

    def of(self, strategy: str) -> list[Family]:
        """Those that have layouts of a strategy, or could have."""
        wanted = form_of(strategy)
        alike = (family for family in self.families if family.form == wanted)
        if "mp" not in strategy.split(" x "):
            return list(alike)
        return [family._replace(least=family.least_in_turn) for family in alike]

    def _families(self, part: Cluster) -> Iterator[Family]:
        job, model = self._question.job, self._question.model
        for copy in copies(job, model, part.num_gpus, self._known):
            ranks = part.num_gpus // prod(copy.values())
            for recompute, alike in self._alike_of(part, copy, ranks):
                least, in_turn = (
                    figures_of(job.goal, seconds=seconds, num_gpus=part.num_gpus, gpu=part.gpu)
                    for seconds in self._least_seconds(alike, pp=copy["pp"], ranks=ranks)
                )
                yield Family(least, part, copy, recompute, alike, in_turn)

    def _alike_of(self, part: Cluster, copy: dict[str, Any], ranks: int) -> tuple[tuple[Recompute, int], ...]:
        """Each recompute, and the number of executions whose pieces are the family's or shorter: the sharded ones'.

        Ranks along an axis of a copy share a node wherever they can: whether there are several is all that tells parts
        apart.
        """
        key = (*copy.values(), ranks > 1, part.num_nodes > 1)
        if key not in self._alike:
            layout = Layout(**copy, dp_shard=ranks)
            choice = Choice(strategy=layout.strategy, layout=layout, cluster=part)
            each = bases(self._question.job, self._question.model, choice)
            self._alike[key] = tuple((base.gradient_checkpointing, self._bounds.alike(part, base)) for base in each)
        return self._alike[key]

    def _least_seconds(self, alike: int, *, pp: int, ranks: int) -> tuple[float, float]:
        """Of a step of any layout of a family, in any order of its pipeline; and with one rank at work at a time."""
        batch, layers = self._question.job.train.global_batch_size, self._question.model.num_layers
        least = in_turn = inf
        for size in sizes_on(self._question.job, ranks):
            pieces, micros = self._bounds.pieces(alike, size), -(-batch // (size * ranks))
            once = layers * (pieces.forward.seconds + pieces.backward.seconds) + pieces.loss.seconds
            seconds, in_turn = micros * once / pp, min(in_turn, micros * once)
            if pp > 1 and seconds < least:
                seconds = max(seconds, self._through_last(pp, pieces, micros))
            least = min(least, seconds)
        return least * _ROUNDING, in_turn * _ROUNDING

    def _through_last(self, pp: int, pieces: Pieces, micros: int) -> float:
        """As `Bounds.seconds` has it, of the order for which it is least."""
        layers, least = self._question.model.num_layers, inf
        ahead, back = pieces.forward.seconds, pieces.backward.seconds
        orders: dict[Schedule, float] = {"1f1b": back, "zero_bubble": back - pieces.weights, "interleaved": back}
        for schedule, behind in orders.items():
            stages = pp * stages_per_rank(schedule)
            if stages > layers:
                continue
            blocks = self._bounds.blocks(stages)
            others, own = sum(blocks[: pp - 1]), sum(blocks[pp - 1 :: pp])
            least = min(least, others * (ahead + behind) + micros * (own * (ahead + back) + pieces.loss.seconds))
        return least
