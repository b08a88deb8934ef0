"""What a question leaves open with one offload, strategy by strategy, and how good the best of each is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwise.plan.candidates import Forecast, candidate_of
from shardwise.plan.contest import contest
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Frontier, Spread
from shardwise.plan.groups import Group
from shardwise.plan.lacks import why_not
from shardwise.plan.look import Look
from shardwise.plan.products import Choice, layouts
from shardwise.plan.ranking import reach, simplicity_of
from shardwise.plan.shares import formed_parts, parts
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan import Candidate, Rejection

#: With more executions open than this, the best of a strategy that cannot be chosen is not looked for any more: one of
#: its executions that fits stands for it, and its reason says so.
_OPEN_FOR_ALL = 2000

#: How often, and with how much more interest each time, parts of a cluster are looked at before anything is known.
_LOOKS, _MORE = 10, 1.4

_Figures = tuple[float, ...]


@dataclass(kw_only=True)
class Strategy:
    """All layouts of one name.

    Attributes:
        groups: executions on the whole cluster, or on the one part of it that is looked at.
        spreads: what waits unopened on parts that `groups` are not on.
        everywhere: what could wait on all parts, were there no groups.
        left_out: the first layout that is not considered, with its reason.
        look: how far they have been looked at.
    """

    groups: list[Group] = field(default_factory=list[Group])
    spreads: Sequence[Spread] = ()
    everywhere: Sequence[Spread] = ()
    left_out: Choice | None = None
    look: Look | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came out for one strategy: its best candidate, or the reason why there is none.

    Attributes:
        strategy: its name.
        explorer: who found it.
        least: the candidate that needs least memory, where none fits.
    """

    strategy: str
    explorer: Explorer
    forecast: Forecast | None = None
    best: Candidate | None = None
    least: Candidate | None = None
    rejection: Rejection | None = None


class Exploration:
    """The strategies of one question, which states an offload, and the best of each that was looked for.

    Args:
        explorer: of the question.
        strategies: what each leaves open, by its name.
    """

    def __init__(self, explorer: Explorer, strategies: Mapping[str, Strategy]) -> None:
        self.explorer = explorer
        self.strategies = strategies
        self._known: dict[str, Forecast] = {}
        self._candidates: dict[str, Candidate] = {}

    @property
    def names(self) -> list[str]:
        """Those of its strategies, the simplest first."""
        return sorted(self.strategies, key=simplicity_of)

    @property
    def offload(self) -> str:
        """Of the question."""
        return self.explorer.question.job.train.offload

    def may_fit(self) -> bool:
        """Whether anything that was opened fits, or something is unopened, which may fit on a smaller part alone."""
        return any(strategy.spreads or self.fits(name) for name, strategy in self.strategies.items())

    def fits(self, name: str) -> bool:
        """Whether anything of a strategy fits, of what was opened."""
        return self.explorer.fits(self.strategies[name].groups)

    @property
    def known(self) -> list[Found]:
        """The best of each strategy, as far as they were looked for and are there; the simplest first."""
        return [self._found_of(name) for name in self.names if name in self._known]

    def best(self, name: str, enough: _Figures | None = None) -> Candidate | None:
        """The best candidate of a strategy; None where there is none within `enough`.

        Args:
            name: of the strategy.
            enough: figures beyond which nothing is of interest.
        """
        strategy = self.strategies[name]
        if strategy.look is None:
            strategy.look = Look(self.explorer, strategy.groups, spreads=strategy.spreads, strategy=name)
        found = strategy.look.best(enough=enough)
        if found is None:
            return None
        if self._known.get(name) is not found:
            self._known[name] = found
            self._candidates[name] = self._candidate(found)
        return self._candidates[name]

    def look(self) -> None:
        """Looks for the best of all strategies; where very many executions are open, of those that could be chosen."""
        if self.explorer.effort.is_large:
            contest_of([self], enough=self._within_reach())
        else:
            for name in self.names:
                self.best(name)

    def _within_reach(self) -> _Figures | None:
        """Figures beyond which nothing is chosen, found by looking with ever more interest, from what nothing stays
        below on smaller parts; None where there are none, or all is far from that."""
        question, explorer = self.explorer.question, self.explorer
        lists = {id(strategy.spreads): strategy.spreads for strategy in self.strategies.values()}
        least = explorer.outlooks.least_figures(spread for spreads in lists.values() for spread in spreads)
        if least is None or not explorer.prunes:
            return None
        for times in range(_LOOKS):
            found = contest_of([self], enough=tuple(figure * _MORE**times for figure in least))
            if found:
                return reach(found, goal=question.job.goal, gpu=question.cluster.gpu)
        return None

    def found(self) -> list[Found]:
        """What came out for every strategy, the simplest first; behind a look."""
        return [self._found_of(name) for name in self.names]

    def _found_of(self, name: str) -> Found:
        explorer, strategy = self.explorer, self.strategies[name]
        if name in self._known:
            return Found(strategy=name, explorer=explorer, forecast=self._known[name], best=self._candidates[name])
        groups = strategy.groups or explorer.opener.opened_on_largest(strategy.spreads, name)
        if not groups:
            left_out = strategy.left_out
            if left_out is None:
                return Found(strategy=name, explorer=explorer)
            reason = Rejection(strategy=name, layout=left_out.layout, reason=left_out.reason or "")
            return Found(strategy=name, explorer=explorer, rejection=reason)
        # Among very many, where something fits, it was not looked for in full.
        passed_over = bool(self._known) and explorer.effort.is_large
        work, memory = explorer.one_that_fits(groups) if passed_over else explorer.least(groups)
        forecast = Forecast(work=work, memory=memory, time=explorer.time(work))
        candidate = self._candidate(forecast)
        if memory.peak_high_bytes <= memory.capacity_bytes:
            return Found(strategy=name, explorer=explorer, forecast=forecast, best=candidate)
        reason = why_not(work, memory)
        return Found(
            strategy=name,
            explorer=explorer,
            least=replace(candidate, fits=False, reasons=(reason,)),
            rejection=Rejection(strategy=name, layout=work.execution.layout, reason=reason),
        )

    def _candidate(self, found: Forecast) -> Candidate:
        return candidate_of(self.explorer.question, found)


def contest_of(explorations: Sequence[Exploration], *, enough: _Figures | None = None) -> list[Candidate]:
    """The best candidates of those strategies that could be chosen; in each exploration they are known then.

    Args:
        explorations: of one question, those with less offload before those with more.
        enough: figures beyond which nothing is of interest.
    """
    question = explorations[0].explorer.question
    ways = [(exploration, name) for exploration in explorations for name in exploration.names]

    def best(number: int, within: _Figures | None) -> Candidate | None:
        exploration, name = ways[number]
        return exploration.best(name, within)

    goal, gpu = question.job.goal, question.cluster.gpu
    return list(contest(range(len(ways)), best=best, goal=goal, gpu=gpu, enough=enough).values())


def explore(explorer: Explorer, *, on: Cluster | None = None) -> Exploration:
    """What every strategy leaves open on the parts of the cluster that the goal looks at, or on one.

    Args:
        explorer: of the question.
        on: the only part to look at.
    """
    question, strategies = explorer.question, dict[str, Strategy]()
    waits = question.job.goal == "cheapest" and question.job.stated_layout is None
    for part in [question.cluster] if waits else _looked_at(explorer) if on is None else [on]:
        _sort_in(explorer, part, strategies)
    frontier = _frontier(explorer) if waits else None
    # As many are taken to be open on each part as on the whole.
    explorer.effort.is_large = explorer.effort.open * (frontier.num_parts if frontier else 1) > _OPEN_FOR_ALL
    if frontier is not None:
        _leave_waiting(frontier, strategies)
    return Exploration(explorer, strategies)


def explore_whole(explorer: Explorer) -> Exploration:
    """What every strategy leaves open on all of the hardware."""
    strategies = dict[str, Strategy]()
    _sort_in(explorer, explorer.question.cluster, strategies)
    return Exploration(explorer, strategies)


def _looked_at(explorer: Explorer) -> list[Cluster]:
    """Parts of a question's cluster, and the whole of it."""
    question = explorer.question
    return [part for part in formed_parts(question.job, question.cluster) if _is_worth_a_look(explorer, part)]


def _is_worth_a_look(explorer: Explorer, part: Cluster) -> bool:
    """Within a node there is something to say of parts without room too, and of the whole in any case."""
    return part.num_nodes == 1 or part == explorer.question.cluster or explorer.has_room(part)


def _frontier(explorer: Explorer) -> Frontier:
    """What the cluster and smaller parts of it have to offer, unopened."""
    question = explorer.question
    worth = [part for part in parts(question.job, question.cluster) if _is_worth_a_look(explorer, part)]
    return Frontier(question, explorer.bounds, worth)


def waiting(explorer: Explorer, parts: Sequence[Cluster]) -> dict[str, Strategy]:
    """What the strategies of a question have on some parts of its cluster, unopened."""
    frontier = Frontier(explorer.question, explorer.bounds, parts)
    return {name: Strategy(spreads=frontier.of(name)) for name in frontier.strategies}


def _leave_waiting(frontier: Frontier, strategies: dict[str, Strategy]) -> None:
    """Gives strategies what they have on smaller parts; most have the same as others, and share it."""
    smaller = dict[int, list[Spread]]()
    for name in frontier.strategies:
        everywhere = frontier.of(name)
        if id(everywhere) not in smaller:
            smaller[id(everywhere)] = frontier.smaller(everywhere)
        if smaller[id(everywhere)]:
            strategy = strategies.setdefault(name, Strategy())
            strategy.spreads, strategy.everywhere = smaller[id(everywhere)], everywhere


def _sort_in(explorer: Explorer, part: Cluster, strategies: dict[str, Strategy]) -> None:
    """Adds the executions on all GPUs of a part to those of their strategies."""
    question = explorer.question
    for choice in layouts(question.job, question.model, part):
        strategy = strategies.setdefault(choice.strategy, Strategy())
        reason = explorer.why_left_out(choice)
        if reason is None:
            strategy.groups += explorer.groups(choice)
        else:
            strategy.left_out = strategy.left_out or replace(choice, reason=reason)
