"""Layouts on smaller parts of a cluster that nobody has looked at yet, each family of them with the best that it could
reach: one is opened only as long as that is still of interest.

A family are the layouts of one part of a cluster that spread a copy of the model over as many ranks, in the same way.
They differ in how copies share the data out, and in the order of a pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import bases
from shardwise.plan.products import Choice, copies
from shardwise.plan.question import Question
from shardwise.plan.ranking import figures_of
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Recompute
from shardwise.spec.job import Goal
from shardwise.spec.layout import Layout, Schedule

_FEWEST_OF_A_HYBRID = 4
_SHARING, _PIPELINES = {"ddp", "zero1", "zero2", "fsdp", "hsdp"}, {"pp", "mp"}


class Family(NamedTuple):
    """Layouts that were not looked at, with one of the recomputes that the job leaves open.

    Attributes:
        least: figures of the goal that none of them stays below.
        copy: degrees of the axes whose ranks see the same samples.
        least_in_turn: the same where one rank of a pipeline works at a time.
        alike: by what number `Bounds` knows the pieces of those that shard.
        form: which axes its layouts have: data, pp, tp, cp.
        ranks: those that see different samples.
        spread: the degrees alone.
    """

    least: tuple[float, ...]
    cluster: Cluster
    copy: dict[str, Any]
    recompute: Recompute
    alike: int
    least_in_turn: tuple[float, ...]
    form: tuple[bool, ...]
    ranks: int
    spread: tuple[int, ...]

    def leanest(self, strategy: str, schedule: Schedule) -> Layout | None:
        """The layout of a strategy, in one order of a pipeline, that needs least: what is sharded most is smallest.

        Hybrid sharding is taken to shard over half of the ranks, as if there were an even number of them.
        """
        ranks, first = self.ranks, strategy.split(" x ", maxsplit=1)[0]
        data: dict[str, Any] = {"dp_shard": ranks}
        match first:
            case "ddp":
                data = {"dp_replicate": ranks}
            case "hsdp":
                data = {"dp_shard": ranks // 2, "dp_replicate": 2}
            case "zero1" | "zero2" as zero:
                data |= {"zero_stage": int(zero[-1]), "reshard_after_forward": False}
            case _:
                pass
        if first == "hsdp" and ranks < _FEWEST_OF_A_HYBRID:
            return None
        return Layout(**self.copy, **data, schedule=schedule)


def orders_of(strategy: str) -> tuple[tuple[Schedule, Schedule], ...]:
    """Orders of a pipeline that a strategy may have: one that needs least, and the one that may be fastest of all that
    need no less.

    gpipe and zero_bubble keep no fewer micro-batches in flight than 1f1b, and zero_bubble waits least.
    """
    if "pp" in strategy.split(" x "):
        return ("1f1b", "zero_bubble"), ("interleaved", "interleaved")
    return (("sequential", "sequential"),) if takes_turns(strategy) else (("1f1b", "1f1b"),)


def takes_turns(strategy: str) -> bool:
    """Whether one rank of a strategy's pipeline works at a time."""
    return "mp" in strategy.split(" x ")


def least_figures(
    goal: Goal, bounds: Bounds, alike: int, part: Cluster, *, ranks: int, pp: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Figures of a goal that no layout of a family stays below: in any order of a pipeline, and with one rank at work
    at a time.

    Args:
        goal: whose figures.
        bounds: of the question.
        alike: by what number they know the family's pieces.
        part: the GPUs.
        ranks: those that see different samples.
        pp: stages of a pipeline.
    """
    seconds, in_turn = bounds.least_seconds(alike, part, ranks=ranks, pp=pp)
    alone = figures_of(goal, seconds=in_turn, num_gpus=part.num_gpus, gpu=part.gpu)
    least = figures_of(goal, seconds=seconds, num_gpus=part.num_gpus, gpu=part.gpu) if pp > 1 else alone
    return least, alone


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
        self._of: dict[tuple[tuple[bool, ...], bool], list[Family]] = {}
        self._by_form: dict[tuple[bool, ...], list[Family]] = {}
        for family in (family for part in parts for family in self._families(part)):
            self._by_form.setdefault(family.form, []).append(family)

    @property
    def families(self) -> list[Family]:
        """All of them."""
        return [family for alike in self._by_form.values() for family in alike]

    @property
    def num_parts(self) -> int:
        """Parts of the cluster that have any."""
        return len({family.cluster.num_gpus for family in self.families})

    @property
    def strategies(self) -> set[str]:
        """Names of all that they may hold."""
        return {name for form in self._by_form for name in _names(form)}

    def of(self, strategy: str) -> list[Family]:
        """Those that have layouts of a strategy, or could have; the same list for all that have the same."""
        form, in_turn = form_of(strategy), takes_turns(strategy)
        if (form, in_turn) not in self._of:
            alike = self._by_form.get(form, [])
            self._of[form, in_turn] = [one._replace(least=one.least_in_turn) for one in alike] if in_turn else alike
        return self._of[form, in_turn]

    def _families(self, part: Cluster) -> Iterator[Family]:
        job, world = self._question.job, part.num_gpus
        for copy in copies(job, self._question.model, world, self._known):
            pp, spread = copy["pp"], tuple(copy.values())
            ranks = world // prod(spread)
            form = (ranks > 1, pp > 1, copy["tp"] > 1, copy["cp"] > 1)
            for recompute, alike in self._alike_of(part, copy, ranks):
                least, alone = least_figures(job.goal, self._bounds, alike, part, ranks=ranks, pp=pp)
                yield Family(least, part, copy, recompute, alike, alone, form, ranks, spread)

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
