"""Layouts on parts of a cluster that nobody has looked at yet: a part is opened for one only as long as that is still
of interest.

A spread is one way to spread a copy of the model over GPUs; it is ruled out on all parts at once, wherever that can be.
A family are the layouts of one spread on one part: they differ in how copies share the data out, and in the order of a
pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from shardwise.plan.bounds import Bounds
from shardwise.plan.choices import bases, sizes_on
from shardwise.plan.products import Choice, copies
from shardwise.plan.question import Question
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Recompute
from shardwise.spec.layout import Layout, Schedule

_FEWEST_OF_A_HYBRID = 4
_SHARING, _PIPELINES = {"ddp", "zero1", "zero2", "fsdp", "hsdp"}, {"pp", "mp"}


class Spread(NamedTuple):
    """One way to spread a copy of the model, with one of the recomputes that the job leaves open.

    Attributes:
        copy: degrees of the axes whose ranks see the same samples.
        recompute: what is computed again.
        alike: by what number `Bounds` knows the pieces of those of its layouts that shard.
        form: which axes its layouts have: data, pp, tp, cp.
        parts: of the cluster, with GPUs for a number of copies, the smallest first.
        sizes: of micro-batches, all that its layouts may have on any of these, the smallest first.
    """

    copy: dict[str, Any]
    recompute: Recompute
    alike: int
    form: tuple[bool, ...]
    parts: Sequence[Cluster]
    sizes: tuple[int, ...]

    @property
    def num_gpus(self) -> int:
        """Of one copy."""
        return prod(self.copy.values())

    def family(self, part: Cluster) -> Family:
        """Its layouts on a part, of which nothing is known."""
        return Family((), part, self, part.num_gpus // self.num_gpus)


class Family(NamedTuple):
    """Layouts of one spread on one part of a cluster.

    Attributes:
        least: figures of the goal that none of them stays below; none where nobody asked for them.
        ranks: those that see different samples.
    """

    least: tuple[float, ...]
    cluster: Cluster
    spread: Spread
    ranks: int

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
        return Layout(**self.spread.copy, **data, schedule=schedule)


def orders_of(strategy: str) -> tuple[tuple[Schedule, Schedule], ...]:
    """Orders of a pipeline that a strategy may have: one that needs least, and the one that may be fastest of all that
    need no less.

    gpipe and zero_bubble keep no fewer micro-batches in flight than 1f1b, and zero_bubble waits least.
    """
    if "pp" in strategy.split(" x "):
        return ("1f1b", "zero_bubble"), ("interleaved", "interleaved")
    return (("sequential", "sequential"),) if "mp" in strategy.split(" x ") else (("1f1b", "1f1b"),)


def orders_sending(strategy: str, *, on_host: bool) -> tuple[tuple[Schedule, Schedule], ...]:
    """The same of a strategy that makes weights whole for every micro-batch.

    zero_bubble does so once for a step, and keeps them; of what is sharded it goes with ZeRO-2 alone (`spec.support`).

    Args:
        strategy: its name.
        on_host: weights come from the host's memory.
    """
    orders: list[tuple[Schedule, Schedule]] = [(lean, lean) for lean, _ in orders_of(strategy)]
    if "pp" in strategy.split(" x ") and strategy.startswith("zero2") and not on_host:
        orders.append(("zero_bubble", "zero_bubble"))
    return tuple(orders)


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
    """The spreads of some parts of a question's cluster.

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
        self._sizes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._by_form: dict[tuple[bool, ...], list[Spread]] = {}
        for spread in self._spreads(parts):
            self._by_form.setdefault(spread.form, []).append(spread)

    @property
    def num_parts(self) -> int:
        """Parts of the cluster that have any."""
        spreads = (spread for alike in self._by_form.values() for spread in alike)
        return len({part.num_gpus for spread in spreads for part in spread.parts})

    @property
    def strategies(self) -> set[str]:
        """Names of all that they may hold, of those that the job leaves open."""
        names, among = {name for form in self._by_form for name in _names(form)}, self._question.job.layout
        return names & {*among, "single"} if isinstance(among, list) else names

    def of(self, strategy: str) -> list[Spread]:
        """Those that have layouts of a strategy, or could have; the same list for all that have the same."""
        return self._by_form.get(form_of(strategy), [])

    def smaller(self, spreads: Iterable[Spread]) -> list[Spread]:
        """The same without the whole cluster, where anything is left of them."""
        whole = self._question.cluster
        below = (one._replace(parts=[part for part in one.parts if part != whole]) for one in spreads)
        return [one for one in below if one.parts]

    def _spreads(self, parts: Iterable[Cluster]) -> Iterator[Spread]:
        """Of each copy and recompute one, or more where pieces take another time on small parts than on large ones."""
        found: dict[object, tuple[Spread, list[Cluster]]] = {}
        for part in parts:
            for copy in copies(self._question.job, self._question.model, part.num_gpus, self._known):
                ranks = part.num_gpus // prod(copy.values())
                form = (ranks > 1, copy["pp"] > 1, copy["tp"] > 1, copy["cp"] > 1)
                for recompute, alike in self._alike_of(part, copy, ranks):
                    key = (*copy.values(), form, recompute, alike)
                    if key not in found:
                        found[key] = (Spread(copy, recompute, alike, form, (), ()), [])
                    found[key][1].append(part)
        for spread, on in found.values():
            yield spread._replace(parts=on, sizes=self._sizes_on(spread, on))

    def _sizes_on(self, spread: Spread, parts: Sequence[Cluster]) -> tuple[int, ...]:
        ranks = tuple(spread.family(part).ranks for part in parts)
        if ranks not in self._sizes:
            each = (sizes_on(self._question.job, number) for number in ranks)
            self._sizes[ranks] = tuple(sorted({size for sizes in each for size in sizes}))
        return self._sizes[ranks]

    def _alike_of(self, part: Cluster, copy: dict[str, Any], ranks: int) -> tuple[tuple[Recompute, int], ...]:
        """Each recompute, and the number of executions whose pieces are the spread's or shorter: the sharded ones'.

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
