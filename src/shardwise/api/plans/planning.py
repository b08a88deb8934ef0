"""`plan`, and how every verb reads a job and forecasts it."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from shardwise.api.plans.calibrated import with_chance, with_runs
from shardwise.api.plans.counting import KnownData
from shardwise.api.plans.for_target import plan_for_target
from shardwise.api.plans.shapes import find_model, profiled, read_request
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.offers import ANY, alternatives, is_open, offered_hardware
from shardwise.catalog.probe import PROBED, probed_machine, this_machine
from shardwise.errors import HardwareError, InputError, Problem
from shardwise.plan import (
    MOST_GPUS_OFFERED,
    best_of_catalogue,
    best_of_list,
    find_unknown,
    make_plan,
    plan_generation,
    timeline_of_plan,
)
from shardwise.plan import solve as solved_plan
from shardwise.report.pages.plan_page import plan_html
from shardwise.spec.cluster import Cluster
from shardwise.spec.data_facts import Known
from shardwise.spec.job.keys import Job
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.plan.generation import Generation
from shardwise.spec.plan.timeline import Timeline
from shardwise.spec.request import Override, Request
from shardwise.spec.run import RunDirectory, revision_of, write_json, write_text
from shardwise.spec.support.splits import as_trained
from shardwise.spec.support.trained import misfit


def plan(
    job: Job | str | Path | None = None,
    *,
    overrides: Sequence[str | Override] = (),
    solve: str | None = None,
    calibrated: bool = False,
    asks_what_if: bool = False,
    target: str | None = None,
) -> Plan:
    """Every way of spreading a job over its hardware, ranked for its goal; why others are rejected.

    Without `hardware` it is this machine. If that has no GPU and the job names no data, hardware of
    the catalogue is compared, as with `hardware: any`.

    Args:
        job: a job, a job file, or None where the overrides say it all.
        overrides: `key.path=value` as after `--set`.
        solve: the key to solve for: the largest `max_length`, `micro_batch_size` or `lora.r` that
            fits, or the fewest `gpus`; the plan is then that of the job with this value.
        calibrated: forecasts are multiplied by what runs like them measured here over theirs;
            otherwise a plan only says what these were.
        asks_what_if: the job is planned with some changes too, which stand in `what_if`.
        target: the trainer to plan for, as `export --to` names it; None for this one.

    Raises:
        InputError: the question cannot be answered.
        UnsupportedError: the target would train something else than the job states.
    """
    request = read_request(job, overrides=overrides)
    if target is not None:
        return with_chance(_for_target(request, target))
    if solve is not None:
        made = _solved(request, solve)
    elif (cluster := _hardware(request)) is None:
        made = _on_open_hardware(request)
    else:
        made = Planning.of(request, cluster=cluster).plan(asks_what_if=asks_what_if, samples_rows=True)
    if asks_what_if and made.offers is not None:
        raise HardwareError("--what-if is for one hardware; name it, such as --hardware '4x RTX-6000-Ada'")
    if calibrated and made.offers is not None:
        raise HardwareError("--calibrated is for one hardware; name it, or leave it out for this machine")
    return with_chance(with_runs(made, multiply=calibrated))


def problems(overrides: Sequence[str | Override]) -> list[Problem]:
    """All that is wrong with keys and hardware, which `plan` says one after the other."""
    found: dict[tuple[str | None, str], Problem] = {}
    given = [Override.of(one) for one in overrides]
    for part in (given, [one for one in given if one.path[0] in ("model", "hardware")]):
        try:
            _hardware(read_request(None, overrides=part))
        except InputError as error:
            found |= {(one.where, one.message): one for one in error.problems}
    return [*found.values()]


def _for_target(request: Request, target: str) -> Plan:
    def planned(job: Job, cluster: Cluster | None) -> Plan:
        asked = replace(request, job=job)
        return _on_open_hardware(asked) if cluster is None else Planning.of(asked, cluster=cluster).plan()

    cluster = _hardware(request)
    with request.placing():
        return plan_for_target(request.job, target, cluster=cluster, planned=planned)


#: Types of weights that text is generated with, and that a merged model is written in.
DTYPES = ("float32", "bfloat16", "float16")

#: Keys of a job that say what generating needs.
GENERATES = (
    *("model", "method", "hardware", "data.max_length", "train.global_batch_size"),
    *("lora.r", "lora.target_modules", "lora.use_dora", "lora.modules_to_save"),
)


def generation(
    job: Job | str | Path | None = None, *, overrides: Sequence[str | Override] = (), dtype: str | None = None
) -> Generation:
    """What generating text with a job's model needs on its hardware, or which is the cheapest that
    holds it. Arguments and errors are those of `plan`; `dtype`: of weights, keys and values, None
    for the model's own. Raises InputError also where an override sets what is not read."""
    request = read_request(job, overrides=overrides)
    unread = [one for one in map(Override.of, overrides) if ".".join(one.path) not in GENERATES]
    if unread:
        message = f"--task generate does not read this key; it reads {', '.join(GENERATES)}, and --dtype"
        raise InputError([Problem(where=one.where, message=message) for one in unread])
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"--dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    cluster = _hardware(request)
    kinds = [[cluster]] if cluster else _on_offer(request)
    with request.blaming("model"):
        model = find_model(request.job.model, rope=request.job.rope_scaling)
    with request.placing():
        clusters = [size for kind in kinds for size in kind]
        return plan_generation(request.job, model=model, clusters=clusters, is_open=cluster is None, dtype=dtype)


def _on_offer(request: Request) -> list[list[Cluster]]:
    """Of each GPU on offer its sizes; or those of a list, one by one."""
    named = request.job.hardware or ANY
    if named.strip().lower() == ANY:
        return offered_hardware(most=MOST_GPUS_OFFERED)
    with request.blaming("hardware"):
        return [[cluster] for cluster in alternatives(named)]


def _hardware(request: Request) -> Cluster | None:
    """What the job names, or this machine; None where hardware is to be compared."""
    named = request.job.hardware
    with request.blaming("hardware"):
        if named == PROBED:
            return probed_machine()
        if named is not None:
            return None if is_open(named) else parse_hardware(named)
        here = this_machine()
    return None if here.gpu.kind == "cpu" and not request.job.data.path else here


def usual_hardware() -> str:
    """`this` machine where it has a GPU; else `any`, which compares what there is to rent."""
    return ANY if this_machine().gpu.kind == "cpu" else "this"


def _solved(request: Request, name: str) -> Plan:
    job, cluster = request.job, _hardware(request)
    if cluster is None:
        message = "the hardware is open, and so there is no one answer; name it, such as --hardware '4x RTX-6000-Ada'"
        raise HardwareError.at(f"--solve {name}", message)
    with request.blaming("model"):
        model = profiled(find_model(job.model, rope=job.rope_scaling), job, [cluster])
    with request.placing():
        known = KnownData.of(request, samples_rows=True)
        made = solved_plan(find_unknown(name, job=job, model=model, cluster=cluster, num_rows=known.known[0]))
    if made.best is None:
        _refuse_misfit(request, model=model, cluster=cluster)
    return known.shown_in(made)


def _on_open_hardware(request: Request) -> Plan:
    kinds = _on_offer(request)
    clusters = [size for kind in kinds for size in kind]
    with request.blaming("model"):
        model = profiled(find_model(request.job.model, rope=request.job.rope_scaling), request.job, clusters)
    known = KnownData.of(request, samples_rows=True)
    with request.placing():
        if "," in (request.job.hardware or ANY):
            made = best_of_list(request.job, model=model, clusters=clusters, known=known.known)
        else:
            made = best_of_catalogue(request.job, model=model, kinds=kinds, known=known.known)
    return known.shown_in(made)


def write_plan(made: Plan, path: str | Path) -> None:
    """Writes plan.json, which `train` takes in place of a job. Raises InputError: it cannot."""
    with written_to(path):
        write_json(Path(path), made.to_json())


def timeline(made: Plan) -> Timeline | None:
    """The timeline of the chosen candidate's step, or None; InputError if the plan is another's."""
    try:
        return timeline_of_plan(made)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no timeline can be drawn of a plan written elsewhere: {error}") from None


def write_plan_page(made: Plan, path: str | Path) -> None:
    """Writes the plan as a self-contained page; InputError if the file cannot be written."""
    page = plan_html(made, timeline(made))
    with written_to(path):
        write_text(Path(path), page)


@contextmanager
def written_to(path: str | Path, *, what: str = "file") -> Generator[None]:
    """What cannot be written inside is an InputError that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; name another {what}") from None


@dataclass(frozen=True, kw_only=True)
class Planning:
    """A job, its model, read once, and hardware: what plans are made of as rows become known."""

    request: Request
    cluster: Cluster
    model: ModelShape

    @classmethod
    def of(cls, request: Request, *, cluster: Cluster) -> Self:
        """Reads the model. Raises InputError: there is none, or it cannot be used."""
        read = revision_of(RunDirectory(Path(request.job.output_dir)), request.job.model)
        with request.blaming("model"):
            found = find_model(request.job.model, revision=read, rope=request.job.rope_scaling)
            return cls(request=request, cluster=cluster, model=profiled(found, request.job, [cluster]))

    def plan(self, known: Known = (None, None), *, asks_what_if: bool = False, samples_rows: bool = False) -> Plan:
        """`known`: a run's rows and lengths, else those counted before."""
        job, model, cluster = self.request.job, self.model, self.cluster
        counted = KnownData.of(self.request, samples_rows=samples_rows)
        rows, lengths = known if known[0] is not None else counted.known
        with self.request.placing():
            made = make_plan(
                job, model=model, cluster=cluster, num_rows=rows, lengths=lengths, asks_what_if=asks_what_if
            )
        if made.best is None:
            _refuse_misfit(self.request, model=model, cluster=cluster)
        return counted.shown_in(made)


def _refuse_misfit(request: Request, *, model: ModelShape, cluster: Cluster) -> None:
    """Raises InputError at the job's line: the model cannot be cut into the stated layout."""
    layout = request.job.layout_on(cluster)
    reason = None if layout is None else misfit(as_trained(request.job, model), layout, stated=True)
    if reason is not None:
        raise InputError.at(request.where("layout"), reason)
