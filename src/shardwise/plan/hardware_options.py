"""Which hardware? Everything on offer, or a list, with the best execution of a job on each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from shardwise.catalog.offers import num_offers
from shardwise.catalog.prices import cited, price_of
from shardwise.errors import UnsupportedError
from shardwise.plan.answer import answer
from shardwise.plan.changes import on_less
from shardwise.plan.rates import Device
from shardwise.plan.search import Found, Question, ask, best_alone, changed, doubt_of, on_hardware, unmeasured
from shardwise.plan.work import BFLOAT16_BYTES
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Known
from shardwise.spec.job.keys import Goal, Job
from shardwise.spec.model.flops import matrix_parameters
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Candidate, Plan
from shardwise.spec.plan.offers import Offer, Offers, Range
from shardwise.spec.support.attention import stated_attention_refusal
from shardwise.units import GIB, format_gib

GOALS: tuple[Goal, ...] = ("cheapest", "fastest", "fewest-gpus")
#: Rows that are shown.
SHOWN = 10
#: The cards that people own, and how many of one they have.
OWNED, MOST_OWNED = ("RTX-3090", "RTX-4090", "RTX-5090"), 2
#: More GPUs of a kind are compared only where the job does not fit on so many, and then up to the
#: second number: else the fastest hardware would always be the largest.
USUAL_GPUS, MOST_GPUS_OFFERED = 8, 1024
#: Costs and times up to so many times the least are alike, and the fewest GPUs win: forecasts are
#: sure to 15 %, and what providers ask for one GPU differs by more.
_ALIKE: dict[Goal, float] = {"cheapest": 1.2, "fastest": 1.1}
#: GPUs are equally small if they have as much memory in steps of this size.
_MEMORY_STEP = 4 * GIB
#: Of what compiles, as measured of an 8B model (docs/how/measured.md).
COMPILE_SECONDS = 16.0
#: The least share of a smaller size's GPU time that a larger size needs: it may recompute nothing.
_WITHOUT_RECOMPUTATION = 0.65


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Hardware that the job fits on, with its best execution. `start_up`: seconds of a run beside
    its steps, a share in each; 0 where the machine is there. `least`: what is charged."""

    cluster: Cluster
    candidate: Candidate
    start_up: float = 0.0
    least: float = 0.0

    @cached_property
    def step_seconds(self) -> float:
        """Of a step alone, doubts of its layout counted."""
        found = Found(execution=self.candidate.execution, seconds=self.candidate.time.step_seconds)
        return found.seconds * doubt_of(found, self.cluster)

    @property
    def seconds(self) -> float:
        """Of a step, with its share of the start."""
        total, step = self.candidate.time.total_seconds, self.candidate.time.step_seconds
        return self.step_seconds + (self.start_up * step / total if total else 0.0)

    @property
    def usd(self) -> float:
        """Of that, at the typical price; infinite where that is not known."""
        return _usd(self.cluster, self.seconds) * self.charged

    @property
    def charged(self) -> float:
        """How many times its time is charged, where the run is shorter than the least charge."""
        total = self.candidate.time.total_seconds
        return max(1.0, self.least / (total + self.start_up)) if total else 1.0

    @property
    def may_win(self) -> bool:
        """Several providers have it, it has bfloat16 units, and GPUs measured such layouts."""
        is_new = "bfloat16" in self.cluster.gpu.dense_flops
        return is_new and num_offers(self.cluster) > 1 and not unmeasured(self.candidate.execution, self.cluster)


def _usd(cluster: Cluster, seconds: float) -> float:
    price = cluster.gpu.typical_usd_per_hour
    return inf if price is None else price * cluster.num_gpus * seconds / 3600


def _is_owned(cluster: Cluster) -> bool:
    return cluster.gpu.name in OWNED and cluster.num_gpus <= MOST_OWNED


def _memory(cluster: Cluster) -> int:
    return cluster.num_gpus * cluster.gpu.usable_bytes


def _kind(cluster: Cluster) -> tuple[int, int, bool]:
    """What, beside the memory of a GPU, decides whether a job fits."""
    return cluster.num_nodes, cluster.node.num_gpus, "bfloat16" in cluster.gpu.dense_flops


def _figure(goal: Goal, fit: _Fit) -> tuple[float, ...]:
    """Smaller is better."""
    match goal:
        case "fastest":
            return fit.seconds, fit.usd
        case "cheapest":
            return fit.usd, fit.seconds
        case "fewest-gpus":
            return fit.cluster.num_gpus, -(-fit.cluster.gpu.usable_bytes // _MEMORY_STEP), fit.usd, fit.seconds


def _bests(fits: Sequence[_Fit], *, alike: dict[Goal, float]) -> dict[Goal, _Fit]:
    """The best for each goal: of what is alike the one with the fewest GPUs. The cheapest is beaten
    in price and time by none that is as small; what one provider alone has, or no GPU has measured,
    wins only where nothing else fits."""
    found: dict[Goal, _Fit] = {}
    every, likely = fits, [fit for fit in fits if fit.may_win] if alike else []
    for goal in GOALS if every else ():
        fits = every if goal == "fewest-gpus" else likely or every
        needs = [(fit.cluster.num_gpus, fit.usd, fit.seconds) for fit in fits]
        beaten = [any(n <= most and usd < costs and s < takes for n, usd, s in needs) for most, costs, takes in needs]
        figures = [_figure(goal, fit) for fit in fits]
        most = min(figures)[0] * alike.get(goal, 1.0)
        among = [n for n, one in enumerate(figures) if one[0] <= most and (goal != "cheapest" or not beaten[n])]
        ranks = [_figure("cheapest", fit) for fit in fits] if goal == "fastest" and alike else figures
        found[goal] = fits[min((fits[n].cluster.num_gpus, ranks[n], n) for n in among)[-1]]
    return found


def best_of_catalogue(
    job: Job, *, model: ModelShape, kinds: Sequence[Sequence[Cluster]], known: Known = (None, None)
) -> Plan:
    """The plan on the best hardware for the goal, with what else was compared. `kinds`: of each GPU
    its sizes, the smallest first. Raises UnsupportedError: the job cannot be forecast at all."""
    comparison = _Comparison(job, model, [size for kind in kinds for size in kind], known=known, rented=True)
    for size in comparison.owned:
        comparison.try_on(size)
    usual = [[size for size in kind if size.num_gpus <= USUAL_GPUS] for kind in kinds]
    for group in ([size for kind in usual for size in kind[:1]], [size for kind in usual for size in kind[1:]]):
        for size in sorted(group, key=comparison.least):
            comparison.try_if_needed(size)
    for kind in kinds:
        for size in kind:
            if size.num_gpus > USUAL_GPUS and not comparison.may_fit(kind):
                comparison.try_if_needed(size)
    best = _bests(comparison.fits, alike=_ALIKE)
    return comparison.plan(shown=_worth_showing(comparison.fits, best), best=best)


def best_of_list(job: Job, *, model: ModelShape, clusters: Sequence[Cluster], known: Known = (None, None)) -> Plan:
    """The plan on the best of some alternatives, each whole. Raises UnsupportedError: none."""
    comparison = _Comparison(job, model, clusters, known=known)
    for offloads in (False, True):  # the host's memory where nothing fits without
        for cluster in () if comparison.fits else clusters:
            comparison.try_on(cluster, explain=True, offloads=offloads)
    fits, best = comparison.fits, _bests(comparison.fits, alike={})
    return comparison.plan(shown=fits if len(fits) <= SHOWN else _worth_showing(fits, best), best=best)


def _worth_showing(fits: Sequence[_Fit], best: dict[Goal, _Fit]) -> list[_Fit]:
    """The best for each goal, and from the cheapest to the fastest what nothing beats in both."""
    if not fits:
        return []
    owned = [fit for fit in fits if fit.start_up and fit.cluster.gpu.name in OWNED]
    groups = [_of_size(owned, n) for n in (1, MOST_OWNED)]
    groups += [[fit for fit in owned if fit.cluster.gpu.name == name] for name in OWNED]
    bests_owned = [min(some, key=lambda fit: (not _is_owned(fit.cluster), fit.usd)) for some in groups if some]
    owned = list({id(fit): fit for fit in bests_owned}.values())
    alone = [fit for fit in _of_size(fits, 1) if fit.start_up and fit.may_win]
    owned += sorted(alone, key=lambda fit: fit.usd)[:1]
    cheapest, fastest = best["cheapest"], best["fastest"]
    between = [cheapest]
    for fit in sorted(fits, key=lambda fit: fit.usd):
        faster = fit.seconds * _ALIKE["fastest"] < between[-1].seconds
        if cheapest.usd < fit.usd < fastest.usd and faster and fastest.seconds * _ALIKE["fastest"] < fit.seconds:
            between.append(fit)
    room = SHOWN - len({id(one) for one in best.values()}) - len(owned)
    if len(between) > room:
        between = [between[n * len(between) // room] for n in range(room)]
    return [fit for fit in fits if any(fit is one for one in (*best.values(), *between, *owned))]


def _of_size(fits: Sequence[_Fit], num_gpus: int) -> list[_Fit]:
    return [fit for fit in fits if fit.cluster.num_gpus == num_gpus]


class _Comparison:
    """Some hardware, with the best execution on each, or why none is there or was looked for."""

    def __init__(
        self, job: Job, model: ModelShape, among: Sequence[Cluster], *, known: Known, rented: bool = False
    ) -> None:
        self.fits: list[_Fit] = []
        self.rented = rented
        self._job, self._model, self._among, (rows, lengths) = job, model, among, known
        job = job.model_copy(update={"goal": "fastest"})
        question = ask(job, model=model, cluster=among[0], num_rows=rows, lengths=lengths)
        self._question = replace(question, at_a_desk=False)
        self._too_small: dict[tuple[int, int, bool], int] = {}
        refused = {size.name: why for size in among if (why := stated_attention_refusal(job, size.gpu))}
        # Name -> whether the job fits (None: unknown), and why it was not tried or does not run.
        self._passed: dict[str, tuple[bool | None, str]] = {}
        if len(refused) < len(among):  # otherwise the plan itself says so
            self._passed = {name: (False, why) for name, why in refused.items()}

    def try_if_needed(self, cluster: Cluster) -> None:
        """Looks for the best execution on hardware, unless none fits or it is hardly worth it."""
        too_small = cluster.gpu.usable_bytes <= self._too_small.get(_kind(cluster), 0)
        if too_small or _memory(cluster) < _least_bytes(self._job, self._model):
            self._passed.setdefault(cluster.name, (False, _too_little(cluster)))
        elif better := self._better_than(cluster):
            why = f"no better than {better} in price and time, or hardly"
            self._passed.setdefault(cluster.name, (None, why))
        else:
            self.try_on(cluster)

    def try_on(self, cluster: Cluster, *, explain: bool = False, offloads: bool = False) -> None:
        """Looks for the best execution on some hardware; `explain` says in full why none is;
        `offloads`: with the host's memory too, also where nothing was found without."""
        passed = cluster.name in self._passed and not offloads
        if passed or any(fit.cluster.name == cluster.name for fit in self.fits):
            return
        question = self._on(cluster, offloads=offloads)
        try:
            found = best_alone(question)
        except UnsupportedError as error:
            self._passed[cluster.name] = False, str(error)
            return
        if found is not None:
            self._passed.pop(cluster.name, None)
            start_up = start_up_seconds(self._question, found) if self.rented else 0.0
            least = 60 * self._job.rent.minimum_minutes if self.rented else 0.0
            self.fits.append(_Fit(cluster=cluster, candidate=found, start_up=start_up, least=least))
            return
        self._too_small[_kind(cluster)] = cluster.gpu.usable_bytes
        rejected = answer(question).rejected if explain else ()
        self._passed[cluster.name] = False, rejected[0].reason if rejected else _too_little(cluster)

    def _on(self, cluster: Cluster, *, offloads: bool) -> Question:
        """With offload if asked, stated, or people own the cards: else there are larger ones."""
        question = on_hardware(self._question, cluster)
        if offloads or self._job.train.offload != "auto" or (_is_owned(cluster) and self.rented):
            return question
        return replace(question, job=changed(question.job, "train", offload="none"))

    @property
    def owned(self) -> list[Cluster]:
        """Cards and boxes that people own, which have a row whatever is cheaper."""
        least = _least_bytes(self._job, self._model)
        return [size for size in self._among if _is_owned(size) and _memory(size) >= least]

    def may_fit(self, kind: Sequence[Cluster]) -> bool:
        """Whether the job fits on some size of a GPU, or may."""
        skipped = {name for name, (fits, _) in self._passed.items() if fits is None}
        names = skipped.union(fit.cluster.name for fit in self.fits)
        return any(size.name in names for size in kind)

    def least(self, cluster: Cluster) -> tuple[float, float]:
        """Dollars and seconds of a step at least: of its products at the best rate, both ways, or
        from fewer of the GPUs."""
        job, passes = self._job, 3 if self._job.method == "full" else 2
        tokens = job.train.global_batch_size * job.sides * self._question.mean_length
        flops = 2 * passes * matrix_parameters(self._model) * tokens
        rates = (Device(gpu=cluster.gpu, compute=name, element_bytes=2).ceiling for name in cluster.gpu.dense_flops)
        seconds = flops / (cluster.num_gpus * max(rates))
        for fit in self.fits:
            if fit.cluster.gpu == cluster.gpu and fit.cluster.num_gpus < cluster.num_gpus:
                recomputes = fit.candidate.execution.gradient_checkpointing != "none"
                shared = fit.candidate.time.step_seconds * fit.cluster.num_gpus / cluster.num_gpus
                seconds = max(seconds, shared * (_WITHOUT_RECOMPUTATION if recomputes else 1))
        return _usd(cluster, seconds), seconds

    def _better_than(self, cluster: Cluster) -> str | None:
        """What is cheaper and faster, or hardly less so; None if nothing that fits is as small."""
        size = (cluster.num_gpus, _memory(cluster))
        if all((fit.cluster.num_gpus, _memory(fit.cluster)) > size for fit in self.fits):
            return None
        usd, seconds = self.least(cluster)
        usd, seconds = usd * _ALIKE["cheapest"], seconds * _ALIKE["fastest"]
        cheap = (fit for fit in self.fits if _usd(fit.cluster, fit.step_seconds) <= usd)
        better = (fit for fit in cheap if fit.step_seconds <= seconds and (fit.may_win or not self.rented))
        return next((fit.cluster.name for fit in better), None)

    def plan(self, *, shown: Sequence[_Fit], best: dict[Goal, _Fit]) -> Plan:
        """The plan on the best hardware, with a row for each compared: first those to be shown."""
        goal = self._job.goal
        ranked = sorted(self.fits, key=lambda fit: (fit is not best[goal], fit not in shown, _figure(goal, fit)))
        aims: list[Goal] = [aim for aim in best if aim != "cheapest" or best[aim].usd < inf]
        best_for: list[tuple[Goal, ...]] = [tuple(aim for aim in aims if best[aim] is one) for one in ranked]
        rows = [_row(one, shown=one in shown, best_for=its) for one, its in zip(ranked, best_for, strict=True)]
        passed = [_priced(size, *self._passed[size.name]) for size in self._among if size.name in self._passed]
        prices = cited(fit.cluster.gpu.name for fit in shown)
        offers = Offers(
            goal=goal,
            price_date=prices.date if prices else None,
            price_source=prices.source if prices else None,
            options=(*rows, *sorted(passed, key=lambda one: one.fits is not None)),
            start_up=self._job.rent.sentence if self.rented and any(one.total_seconds for one in rows) else None,
        )
        if ranked:
            first = ranked[0]
            asked = self._on(first.cluster, offloads=first.candidate.execution.offload != "none")
            made = answer(asked)
            if self.rented and made.best is not None and goal != "fastest":
                among = [size for size in self._among if size.num_gpus <= USUAL_GPUS and num_offers(size) > 1]
                less = on_less(asked, made.best, sorted(among, key=lambda size: (size.num_gpus, _memory(size))))
                made = replace(made, changes=(*made.changes, *less))
        else:
            largest = max(self._among, key=_memory)
            made = answer(on_hardware(replace(self._question, at_a_desk=True), largest))
        return replace(made, job={**self._job.to_json(), "hardware": made.job["hardware"]}, offers=offers)


def start_up_seconds(question: Question, candidate: Candidate) -> float:
    """Of one run on rented hardware, beside steps: boot, download, load, compile, save; charged."""
    model, rent = question.model, question.job.rent
    files = model.published_bytes if model.published else BFLOAT16_BYTES * model.num_parameters
    trained = question.inventory.trained_elements if question.job.adapters else model.num_parameters
    moved = files / rent.download_mb_per_second + (files + BFLOAT16_BYTES * trained) / rent.disk_mb_per_second
    return 60 * rent.boot_minutes + moved / 1e6 + COMPILE_SECONDS * candidate.execution.compile


def _least_bytes(job: Job, model: ModelShape) -> float:
    """On all GPUs together, at least: weights, and in full training gradients and states."""
    if job.train.offload not in ("auto", "none"):
        return 0
    if job.method != "full":
        return model.num_parameters * (0.5 if job.method == "qlora" else 2)
    rule = job.train.optimizer_rule
    moments = rule.num_moments(momentum=False) if rule.elementwise else 0
    return model.num_parameters * (2 if job.train.precision == "bf16" else 4) * (2 + moments)


def _too_little(cluster: Cluster) -> str:
    each = "the GPU has" if cluster.num_gpus == 1 else "each GPU has"
    return f"the job does not fit in the {format_gib(cluster.gpu.usable_bytes)} that {each}"


def _priced(cluster: Cluster, fits: bool | None, reason: str | None = None) -> Offer:
    gpu, count, price = cluster.gpu, cluster.num_gpus, price_of(cluster.gpu.name)
    return Offer(
        hardware=cluster.name,
        num_gpus=count,
        fits=fits,
        capacity_bytes=gpu.usable_bytes,
        usd_per_hour=_times(gpu.usd_per_hour, count),
        typical_usd_per_hour=gpu.typical_usd_per_hour and gpu.typical_usd_per_hour * count,
        price_providers=price.providers if price else 0,
        reason=reason,
    )


def _row(fit: _Fit, *, shown: bool, best_for: tuple[Goal, ...]) -> Offer:
    known, execution, time = _priced(fit.cluster, fits=True), fit.candidate.execution, fit.candidate.time
    total = None if time.total_seconds is None else time.total_seconds + fit.start_up
    hours, per_million = total and total / 3600, 1e6 / time.tokens_per_second / 3600
    typical = known.typical_usd_per_hour
    return replace(
        known,
        shown=shown,
        best_for=best_for,
        strategy=execution.layout.strategy,
        written=execution.layout.written + " + offload" * (execution.offload != "none"),
        peak_bytes=fit.candidate.memory.peak_bytes,
        capacity_bytes=fit.candidate.memory.capacity_bytes,
        step_seconds=time.step_seconds,
        total_seconds=total,
        usd=_times(known.usd_per_hour, hours and hours * fit.charged),
        usd_per_million_tokens=_times(known.usd_per_hour, per_million),
        typical_usd=None if typical is None or hours is None else typical * hours * fit.charged,
        typical_usd_per_million_tokens=None if typical is None else typical * per_million,
    )


def _times(rate: Range | None, hours: float | None) -> Range | None:
    return None if rate is None or hours is None else (rate[0] * hours, rate[1] * hours)
