"""How good families of layouts could be: what a step takes at least on one part of a cluster, and on any of them, by
what a strategy computes and sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from shardwise.plan.bounds import Bounds
from shardwise.plan.frontier import Family, Spread, orders_of, orders_sending
from shardwise.plan.needs import ROUNDING
from shardwise.plan.products import ways_to_shard
from shardwise.plan.question import Question
from shardwise.plan.ranking import figures_of
from shardwise.plan.tempo import Leanest
from shardwise.plan.traffic import Traffic, least_traffic, lightest_traffic
from shardwise.spec.cluster import Cluster
from shardwise.spec.layout import Schedule

#: Figures of a goal.
_Figures = tuple[float, ...]
#: See `frontier.orders_of`.
Orders = tuple[tuple[Schedule, Schedule], ...]
#: An order of a pipeline, the sequences of a micro-batch, and the forwards of a step.
Asked = tuple[Schedule, int, int]
#: Of a family: that of its spread, and which of its parts.
Number = tuple[int, int]
#: How the names of strategies begin that gather weights for every micro-batch.
_SENDING = ("fsdp", "hsdp", "zero2")


class Outlook(NamedTuple):
    """How good a family could be.

    Attributes:
        number: of the family.
        family: with figures that none of its layouts of a strategy stays below.
        leanest: in each order of a pipeline the smallest size and the fewest forwards that are fast enough, if any is.
    """

    number: Number
    family: Family
    leanest: tuple[tuple[int, int] | None, ...]


@dataclass(kw_only=True, slots=True)
class Near:
    """A spread that could come within some figures, were nothing sent for each micro-batch.

    Attributes:
        number: of the spread.
        spread: it.
        wanted: in each order of a pipeline the leanest sizes that are fast enough on any of its parts.
        outlooks: of its families, once that is asked.
    """

    number: int
    spread: Spread
    wanted: tuple[Leanest, ...]
    outlooks: list[Outlook] | None = None


class Outlooks:
    """How good what is left of one question could be; what is found is remembered.

    Args:
        question: whose.
        bounds: of the question.
    """

    def __init__(self, question: Question, bounds: Bounds) -> None:
        self._question = question
        self._bounds = bounds
        self._on_host = question.job.train.offload in ("parameters", "all")
        self._found: dict[object, tuple[Sequence[Spread], list[Near]]] = {}
        self._traffic: dict[tuple[object, ...], Traffic | None] = {}

    def orders(self, strategy: str) -> Orders:
        """Orders of a pipeline that a strategy may have, each with the one that may be fastest in its place."""
        return orders_sending(strategy, on_host=self._on_host) if self._sends(strategy) else orders_of(strategy)

    def least_figures(self, spreads: Iterable[Spread]) -> _Figures | None:
        """Figures that none of some spreads stays below; None where there are none of them."""
        goal = self._question.job.goal
        each = (
            figures_of(
                goal,
                seconds=self._bounds.least_of(one.alike, sizes=one.sizes, pp=one.copy["pp"]),
                num_gpus=one.num_gpus,
                gpu=one.parts[0].gpu,
            )
            for one in spreads
        )
        return min(each, default=None)

    def near(
        self,
        spreads: Sequence[Spread],
        strategy: str,
        enough: _Figures | None,
        *,
        admits: Callable[[Spread, Iterable[Asked]], bool],
    ) -> list[Near]:
        """Those that could come within `enough`; most strategies share their spreads with others.

        Args:
            spreads: where to look.
            strategy: a name.
            enough: figures beyond which nothing is of interest.
            admits: whether no bound rules all layouts of a spread out that keep as little in flight as is asked.
        """
        orders = orders_of(strategy)
        key = (id(spreads), orders, enough)
        if key not in self._found:
            each = (
                Near(number=number, spread=one, wanted=self._wanted(one, orders, enough))
                for number, one in enumerate(spreads)
            )
            near = [one for one in each if any(one.wanted) and admits(one.spread, sizes_asked(orders, one.wanted))]
            self._found[key] = (spreads, near)
        return self._found[key][1]

    def wanted(self, near: Near, strategy: str, enough: _Figures | None) -> list[Asked]:
        """All sizes that a strategy wants on any part, to come within `enough`."""
        orders, wanted = self.orders(strategy), near.wanted
        if self._sends(strategy):
            wanted = self._wanted(near.spread, orders, enough, self._lightest(near.spread, strategy))
        return list(sizes_asked(orders, wanted))

    def of(self, near: Near, strategy: str, enough: _Figures | None) -> list[Outlook]:
        """Of the families of a spread those that could come within `enough`."""
        if near.outlooks is None:
            families = ((place, near.spread.family(part)) for place, part in enumerate(near.spread.parts))
            near.outlooks = _coming_to_something(
                (self._outlook((near.number, place), one, orders_of(strategy), enough) for place, one in families)
            )
        if not self._sends(strategy):
            return near.outlooks
        return _coming_to_something(self._sending(near.outlooks, strategy, enough))

    def _sending(self, outlooks: Iterable[Outlook], strategy: str, enough: _Figures | None) -> Iterator[Outlook]:
        for number, family, _ in outlooks:
            traffic = self._traffic_of(strategy, family)
            if traffic is not None:
                yield self._outlook(number, family, self.orders(strategy), enough, traffic)

    def _sends(self, strategy: str) -> bool:
        """Whether a strategy makes weights whole for every micro-batch, and time is asked for."""
        return self._bounds.timed and (self._on_host or strategy.startswith(_SENDING))

    def _traffic_of(self, strategy: str, family: Family) -> Traffic | None:
        """What no layout of such a strategy in a family stays below; None where there is none."""
        loads, cluster, copy = self._bounds.loads_of(family.spread.alike), family.cluster, family.spread.copy
        key = (strategy, loads, cluster.num_nodes, cluster.node.num_gpus, *copy.values())
        if key not in self._traffic:
            ways = ways_to_shard(strategy, cluster, copy)
            self._traffic[key] = least_traffic(loads, cluster, ways.values()) if ways else None
        return self._traffic[key]

    def _lightest(self, spread: Spread, strategy: str) -> Traffic:
        """What a strategy sends at least, on any part."""
        few, many = (spread.family(spread.parts[place]).ranks for place in (0, -1))
        fewest = max(2, few) if strategy.startswith("fsdp") else 2 if strategy.startswith(_SENDING) else 1
        return lightest_traffic(
            self._bounds.loads_of(spread.alike),
            spread.parts[-1],
            tp=spread.copy["tp"],
            fewest=fewest,
            most=many * spread.copy["cp"] if fewest > 1 else 1,
            again=not strategy.startswith("zero2"),
        )

    def _wanted(
        self, spread: Spread, orders: Orders, enough: _Figures | None, traffic: Traffic | None = None
    ) -> tuple[Leanest, ...]:
        """What is paid is the same for half the copies and twice the seconds; what takes least time has most copies."""
        goal, first, last = self._question.job.goal, *(spread.family(spread.parts[one]) for one in (0, -1))
        copies = 1 if goal == "cheapest" else last.ranks
        within = copies * self._seconds_within(enough, last.cluster, num_gpus=copies * spread.num_gpus)
        batch = self._question.job.train.global_batch_size
        share, pp = -(-batch // first.ranks), spread.copy["pp"]
        return tuple(
            self._bounds.leanest_of(
                spread.alike,
                sizes=spread.sizes,
                share=share,
                pp=pp,
                schedule=fastest,
                within=within,
                traffic=None if fastest == "zero_bubble" else traffic,
            )
            for _, fastest in orders
        )

    def _seconds_within(self, enough: _Figures | None, part: Cluster, *, num_gpus: int) -> float:
        """Seconds of a step on so many GPUs that come within some figures."""
        if enough is None:
            return inf
        of_one_second = figures_of(self._question.job.goal, seconds=1.0, num_gpus=num_gpus, gpu=part.gpu)
        return enough[-1] / of_one_second[-1] / ROUNDING

    def _outlook(
        self, number: Number, family: Family, orders: Orders, enough: _Figures | None, traffic: Traffic | None = None
    ) -> Outlook:
        cluster, pp = family.cluster, family.spread.copy["pp"]
        within = self._seconds_within(enough, cluster, num_gpus=cluster.num_gpus)
        least, leanest = inf, list[tuple[int, int] | None]()
        for _, fastest in orders:
            found = self._bounds.reach(
                family.spread.alike,
                cluster,
                ranks=family.ranks,
                pp=pp,
                schedule=fastest,
                within=within,
                traffic=None if fastest == "zero_bubble" else traffic,
            )
            least = min(least, found.seconds) if found else least
            leanest.append((found.smallest, found.fewest) if found else None)
        figures = figures_of(self._question.job.goal, seconds=least, num_gpus=cluster.num_gpus, gpu=cluster.gpu)
        return Outlook(number, family._replace(least=figures), tuple(leanest))


def _coming_to_something(outlooks: Iterable[Outlook]) -> list[Outlook]:
    return [one for one in outlooks if any(one.leanest)]


def sizes_asked(orders: Orders, wanted: Sequence[Leanest]) -> Iterator[Asked]:
    """All sizes that are wanted in each order of a pipeline."""
    return ((lean, *one) for (lean, _), sizes in zip(orders, wanted, strict=True) for one in sizes)


def least_asked(orders: Orders, outlooks: Sequence[Outlook]) -> list[Asked]:
    """Of several families what all need at least, in each order of a pipeline in which any comes to something."""
    found: list[Asked] = []
    for number, (lean, _) in enumerate(orders):
        each = [one for one in (outlook.leanest[number] for outlook in outlooks) if one is not None]
        if each:
            found.append((lean, min(size for size, _ in each), min(micros for _, micros in each)))
    return found
