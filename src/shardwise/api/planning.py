"""`plan`, and what every verb about a job begins with: reading what was asked, and forecasting it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwise.api.shapes import find_model
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.offers import ANY, alternatives, is_open, offered_hardware
from shardwise.catalog.probe import this_machine
from shardwise.errors import HardwareError, InputError, Problem
from shardwise.plan import MOST_GPUS_OFFERED, best_of_catalogue, best_of_list, find_unknown, make_plan, timeline_of_plan
from shardwise.plan import solve as solved_plan
from shardwise.report.pages.plan_page import plan_html
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Job, LayoutSpec
from shardwise.spec.layout import Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import Lengths, Plan
from shardwise.spec.request import Override, Request, read_request, request_of_flags, request_of_job
from shardwise.spec.run import RunDirectory, revision_of, write_json, write_text
from shardwise.spec.splits import as_trained
from shardwise.spec.support import misfit
from shardwise.spec.timeline import Timeline


def plan(
    job: Job | str | Path | None = None, *, overrides: Sequence[str | Override] = (), solve: str | None = None
) -> Plan:
    """Every way of spreading a job over its hardware, ranked for its goal, and why not each of the others.

    Hardware left out is this machine. Where it has no GPU, and the job no rows to be trained on here, the question is
    which hardware of the catalogue to take, as with `hardware: any`.

    Args:
        job: a job, a job file, or None where the overrides say it all.
        overrides: `key.path=value` as after `--set`.
        solve: the key whose largest value that fits is asked for (`max_length`, `micro_batch_size`, `lora.r`), or
            `gpus` for the fewest; the plan then is that of the job with this value.

    Raises:
        InputError: the question cannot be answered as asked.
    """
    request = request_for(job, overrides)
    if solve is not None:
        return _solved(request, solve)
    with request.blaming("hardware"):
        cluster = _hardware(request.job)
    if cluster is None:
        return _on_open_hardware(request)
    return plan_for(request, cluster=cluster, known=(request.job.data.num_rows, None))


def _hardware(job: Job) -> Cluster | None:
    """What the job names, or what is here; None where that is the question."""
    if job.hardware is not None:
        return None if is_open(job.hardware) else parse_hardware(job.hardware)
    here = this_machine()
    return None if here.gpu.kind == "cpu" and not job.data.path else here


def _solved(request: Request, name: str) -> Plan:
    job = request.job
    with request.blaming("hardware"):
        cluster = _hardware(job)
    if cluster is None:
        message = "the hardware is open, and so there is no one answer; name it, such as --hardware '4x RTX-6000-Ada'"
        raise HardwareError(Problem(where=f"--solve {name}", message=message))
    with request.blaming("model"):
        model = find_model(job.model)
    with request.placing():
        made = solved_plan(find_unknown(name, job=job, model=model, cluster=cluster))
    if made.best is None:
        _refuse_misfit(request, model=model, cluster=cluster)
    return made


def _on_open_hardware(request: Request) -> Plan:
    """The plan on the hardware that is the best for the goal, with what else was compared."""
    with request.blaming("hardware"):
        named = request.job.hardware or ANY
        kinds = offered_hardware(most=MOST_GPUS_OFFERED) if named.strip().lower() == ANY else None
        listed = alternatives(named) if kinds is None else []
    with request.blaming("model"):
        model = find_model(request.job.model)
    with request.placing():
        if kinds is None:
            return best_of_list(request.job, model=model, clusters=listed)
        return best_of_catalogue(request.job, model=model, kinds=kinds)


def write_plan(made: Plan, path: str | Path) -> None:
    """Writes plan.json, which `train` takes in the place of a job file.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        write_json(Path(path), made.to_json())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; name another file") from None


def timeline(made: Plan) -> Timeline | None:
    """Who computes, who talks and who waits in a step of the chosen candidate; None where nothing fits.

    Raises:
        InputError: the plan was not made by this program.
    """
    try:
        return timeline_of_plan(made)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no timeline can be drawn of a plan written elsewhere: {error}") from None


def write_plan_page(made: Plan, path: str | Path) -> None:
    """Writes the plan as one self-contained page: memory, time and cost of every candidate, reasons, the timeline.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        write_text(Path(path), plan_html(made, timeline(made)))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}; name another file") from None


def request_for(job: Job | str | Path | None, overrides: Sequence[str | Override]) -> Request:
    """What was asked, by a job, a file or flags, with the places to name where it is wrong."""
    if job is None:
        return request_of_flags(overrides)
    return request_of_job(job, overrides=overrides) if isinstance(job, Job) else read_request(job, overrides=overrides)


def plan_for(request: Request, *, cluster: Cluster, known: tuple[int | None, Lengths | None]) -> Plan:
    """The plan of a request on given hardware; `known` is the number of rows and their lengths, where known.

    Raises:
        InputError: the question cannot be answered as asked.
    """
    read = revision_of(RunDirectory(Path(request.job.output_dir)), request.job.model)
    with request.blaming("model"):
        model = find_model(request.job.model, revision=read)
    with request.placing():
        made = make_plan(request.job, model=model, cluster=cluster, num_rows=known[0], lengths=known[1])
    if made.best is None:
        _refuse_misfit(request, model=model, cluster=cluster)
    return made


def _refuse_misfit(request: Request, *, model: ModelShape, cluster: Cluster) -> None:
    """A layout that the model cannot be cut into is a mistake in the job, and no question of memory.

    Raises:
        InputError: at the layout's place in the job.
    """
    stated = request.job.stated_layout
    if isinstance(stated, LayoutSpec):
        layout = stated.to_layout()
    elif stated in ("mp", "pp", "tp"):
        layout = Layout.from_strategy(stated, world_size=cluster.num_gpus, gpus_per_node=cluster.node.num_gpus)
    else:
        return  # of the ways to spread that have a name, the others cut no model
    reason = misfit(as_trained(request.job, model), layout, stated=True)
    if reason is not None:
        raise InputError(Problem(where=request.where("layout"), message=reason))
