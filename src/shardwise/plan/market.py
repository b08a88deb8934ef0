"""The catalogue as a market: the sizes of each GPU on which a job fits, what each could reach, and does reach."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from shardwise.errors import UnsupportedError
from shardwise.plan.explain.shortage import why_not
from shardwise.plan.search.candidates import Forecast
from shardwise.plan.search.executions import offloads
from shardwise.plan.search.goals import TIE_SHARE
from shardwise.plan.search.question import Question, on_hardware
from shardwise.plan.search.search import Admits, Search, best_alone, every_layout
from shardwise.spec.attention import stated_attention_refusal
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Goal
from shardwise.spec.layout import Layout
from shardwise.spec.plan import Candidate

#: Larger sizes are looked at only where none up to this one fits, and then the smallest of them: else the fastest
#: hardware would always be the largest.
USUAL_GPUS = 8

_Shape = tuple[int, int]
Found = tuple[Cluster, Candidate]


def figure(goal: Goal, cluster: Cluster, *, step_seconds: float) -> tuple[float, ...]:
    """What is least in the best hardware for a goal; without a price, nothing is cheaper.

    Cheap is what is so at the lowest price that was found: of many GPUs no other is known.
    Of equally many GPUs the smaller are fewer: whoever asks for few has no use for the largest.
    """
    count, price = float(cluster.num_gpus), cluster.gpu.usd_per_hour
    match goal:
        case "fastest":
            return step_seconds, count
        case "cheapest":
            usd = inf if price is None else step_seconds / 3600 * count * price[0]
            return usd, count, step_seconds
        case "fewest-gpus":
            return count, count * cluster.gpu.usable_bytes, step_seconds


def seconds_within(goal: Goal, cluster: Cluster, limit: tuple[float, ...]) -> float:
    """Seconds of a step beyond which hardware is surely no better for a goal than what takes certain figures."""
    price = cluster.gpu.usd_per_hour
    match goal:
        case "fastest":
            return limit[0]
        case "cheapest":
            return inf if price is None else limit[0] * 3600 / (cluster.num_gpus * price[0]) * (1 + 1e-9)
        case "fewest-gpus":
            return inf


class Market:
    """All sizes of all GPUs for one question; what is found is found once.

    Args:
        question: whose hardware is open.
        kinds: of each GPU the sizes it is offered in, the smallest first.

    Attributes:
        able: those of them that have what the job states.
        open: their sizes on which the job fits.
    """

    def __init__(self, question: Question, kinds: Sequence[Sequence[Cluster]]) -> None:
        # On hardware that is taken as a whole, whatever takes the least time costs least; and where other hardware is
        # to be had, nothing is kept in the host's memory unless the job says so.
        whole = replace(question, job=question.job.model_copy(update={"goal": "fastest"}))
        self._question = whole.with_offload(offloads(question.job, question.cluster)[0])
        self._needs: dict[_Shape, float] = {}
        self._lacking: dict[_Shape, Forecast | str] = {}
        self._gpu_seconds: dict[str, float] = {}
        self._beyond: dict[str, float] = {}
        self._laid_out: dict[str, Candidate | None] = {}
        self.kinds = kinds
        self.able = [kind for kind in kinds if self._refusal(kind[0]) is None]
        self.open = [size for kind in self.able for size in self._sizes(kind)]

    def on(self, cluster: Cluster) -> Question:
        """The question asked of one of the sizes."""
        return on_hardware(self._question, cluster)

    def _refusal(self, size: Cluster) -> str | None:
        """Why the job is trained on no GPU of this kind, however many there are."""
        return stated_attention_refusal(self._question.job, size.gpu)

    def _sizes(self, kind: Sequence[Cluster]) -> list[Cluster]:
        usual = [size for size in kind if size.num_gpus <= USUAL_GPUS and self._fits(size)]
        larger = (size for size in kind if size.num_gpus > USUAL_GPUS and self._fits(size))
        return usual or [size for size in [next(larger, None)] if size is not None]

    def _fits(self, size: Cluster) -> bool:
        """What fits is decided by how much memory there is, whosever it is."""
        shape = (size.num_nodes, size.node.num_gpus)
        if shape not in self._needs:
            try:
                self._needs[shape] = Search(self.on(size)).least_high_bytes()
            except UnsupportedError:  # a stated layout cannot be formed on so many
                self._needs[shape] = inf
        return size.gpu.usable_bytes >= self._needs[shape]

    def at_least(self, size: Cluster) -> float:
        """Seconds of a step that no layout on a size stays below: one GPU alone, its sequences shared by all.

        A GPU is never slower with whole matrices than with slices of them, nor alone than with others to talk to; and
        however many there are, each micro-batch goes through all layers, at the pace at which the host launches them.
        """
        name = size.gpu.name
        if name not in self._gpu_seconds:
            self._gpu_seconds[name] = Search(self.on(size.part(1))).least_seconds()
        return max(self._gpu_seconds[name] / size.num_gpus, self._beyond.get(size.name, 0.0))

    def lay_out(self, size: Cluster, *, within: float = inf) -> Candidate | None:
        """The best layout of a size; None where nothing fits, or where it surely takes more seconds than `within`."""
        if size.name not in self._laid_out and self.at_least(size) <= within:
            # The simplest of what is alike with the fastest is chosen, and may take a little longer than that.
            found = best_alone(self.on(size), limit=within * (1 + TIE_SHARE))
            if within == inf or (found is not None and found.time.step_seconds <= within):
                self._laid_out[size.name] = found
            else:
                self._beyond[size.name] = within
        return self._laid_out.get(size.name)

    def best(self, goal: Goal, *, kinds: int) -> list[Found]:
        """The best sizes for a goal, one of each GPU, of so many GPUs; the best first.

        Sizes are laid out in the order of what they could reach; another size of a GPU only where it could be better
        by more than forecasts can tell apart.
        """
        ordered = sorted(self.open, key=lambda size: self._least(goal, size))
        found: dict[str, tuple[tuple[float, ...], Cluster, Candidate]] = {}
        for size in ordered:
            least, held = self._least(goal, size), found.get(size.gpu.name)
            reached = sorted(one[0] for one in found.values())
            limit = reached[kinds - 1] if len(reached) >= kinds else None
            if (limit is not None and least > limit) or (reached and least[0] == inf):
                break
            if held is not None and least[0] * (1 + TIE_SHARE) >= held[0][0]:
                continue
            candidate = self.lay_out(size, within=inf if limit is None else seconds_within(goal, size, limit))
            if candidate is None:
                continue
            takes = figure(goal, size, step_seconds=candidate.time.step_seconds)
            if held is None or takes < held[0]:
                found[size.gpu.name] = (takes, size, candidate)
        best = sorted(found.values(), key=lambda one: one[0])[:kinds]
        return [(size, candidate) for _, size, candidate in best]

    def laid_out(self, goal: Goal, *, also: Collection[str]) -> list[Found]:
        """What was laid out and fits, the best for a goal first: of each GPU the best size, and those named."""
        found = [(size, self._laid_out[size.name]) for size in self.open if size.name in self._laid_out]
        fitting = [(size, candidate) for size, candidate in found if candidate is not None]
        fitting.sort(key=lambda one: figure(goal, one[0], step_seconds=one[1].time.step_seconds))
        firsts: dict[str, str] = {}
        for size, _ in fitting:
            firsts.setdefault(size.gpu.name, size.name)
        return [one for one in fitting if one[0].name in {*firsts.values(), *also}]

    def _least(self, goal: Goal, size: Cluster) -> tuple[float, ...]:
        return figure(goal, size, step_seconds=self.at_least(size))

    def missing(self, size: Cluster) -> str:
        """Why a job does not fit on a size, or is not trained there."""
        if refusal := self._refusal(size):
            return refusal
        shape = (size.num_nodes, size.node.num_gpus)
        if shape not in self._lacking:
            try:
                search = Search(self.on(size))
                least = search.least_of_all(admits=_looked_at(size))
                self._lacking[shape] = least if isinstance(least, str) else search.forecasts.of(least)
            except UnsupportedError as error:
                self._lacking[shape] = str(error)
        lacking = self._lacking[shape]
        if isinstance(lacking, str):
            return lacking
        return why_not(lacking.work, replace(lacking.memory, capacity_bytes=size.gpu.usable_bytes))


def without_pipelines(layout: Layout) -> bool:
    """On many GPUs pipelines are most of what there is, and hold no less than shards do."""
    return layout.pp == 1


def _looked_at(size: Cluster) -> Admits:
    return every_layout if size.num_gpus <= USUAL_GPUS else without_pipelines
