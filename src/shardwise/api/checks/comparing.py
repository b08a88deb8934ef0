"""Runs one job under several layouts: for `verify`, and for `compare`, which shows measurements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shardwise.api.plans.planning import timeline
from shardwise.api.plans.shapes import find_model, read_request
from shardwise.api.runs.opening import Update
from shardwise.api.runs.training import TrainResult, train
from shardwise.errors import (
    DamagedResultError,
    DoesNotFitError,
    InputError,
    Problem,
    RunDirectoryError,
    StoppedError,
    UnsupportedError,
    WorkerFailedError,
)
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.torchrun import place_in_group
from shardwise.launch.requirements import stated_execution, training_cluster
from shardwise.launch.trials import Trial, Unable, check_same_place, find_trials, nothing_to_compare
from shardwise.report.pages.plan_page import versus_html
from shardwise.report.versus import Contender, Failed, Versus, contender, ranked
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.timeline import Timeline
from shardwise.spec.request import Override, Request
from shardwise.spec.run import RunDirectory, write_json, write_text
from shardwise.spec.support.splits import as_trained
from shardwise.spec.support.trained import impossibilities, not_trained_under, refused_everywhere

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Trying:
    """Training under the next layout begins; sent before the updates of its training. `again`: name
    of a repeated training of the same layout, such as `sgd`; empty the first time."""

    layout: str
    number: int
    total: int
    again: str = ""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """One job, as it was given and as it was read, and the layouts to run it under, on the hardware
    that is here; `unable`: layouts that were asked for and cannot run here."""

    job: Job | str | Path
    request: Request
    overrides: tuple[str | Override, ...]
    cluster: Cluster
    trials: tuple[Trial, ...]
    unable: tuple[Unable, ...]
    on_update: Callable[[Update | Trying], None] | None

    @property
    def asked(self) -> Job:
        """The job as it was read."""
        return self.request.job

    def each(self, do: Callable[[Trial], T], *, stopped: str) -> list[T]:
        """Does it for each trial until a signal; `stopped`: what a stop between two means."""
        done: list[T] = []
        with StopRequests() as requests:
            for trial in self.trials:
                if requests.first is not None:
                    raise StoppedError(f"stopped before {trial.label}; {stopped}", exit_code=128 + requests.first)
                done.append(do(trial))
        return done

    def train(self, trial: Trial, *, run: RunDirectory, also: Sequence[Override] = (), again: str = "") -> TrainResult:
        """Trains the job as a trial in `run`; `also` sets, `again` names, a repeated training."""
        number = self.trials.index(trial) + 1
        if self.on_update is not None:
            self.on_update(Trying(layout=trial.label, number=number, total=len(self.trials), again=again))
        place = self.request.where("output_dir")
        return train(
            self.job,
            overrides=(*self.overrides, *trial.overrides(self.cluster, output_dir=str(run.root), place=place), *also),
            on_update=self.on_update,
            quiet=number > 1 or bool(again),
        )


def read_trials(
    job: Job | str | Path,
    *,
    layouts: Sequence[str] | None,
    overrides: Sequence[str | Override],
    on_update: Callable[[Update | Trying], None] | None,
) -> Trials:
    """Reads the job and finds which of the layouts this machine can run; None is one of each kind.
    Raises InputError: the job is wrong, no layout trains it, its hardware is not here, or torchrun
    started this process."""
    if place_in_group() is not None:
        raise InputError("this verb starts the processes of each layout itself; run it without torchrun or srun")
    request = read_request(job, overrides=overrides)
    model = find_model(request.job.model, offline=True, rope=request.job.rope_scaling)
    if reasons := refused_everywhere(request.job, model):
        raise UnsupportedError([Problem(where=request.where(reason.row.key), message=reason) for reason in reasons])

    def refused(layout: Layout) -> str | None:
        execution = stated_execution(request.job, layout)
        reasons = (*not_trained_under(execution), *impossibilities(request.job, execution, model=model))
        return next(iter(reasons), None)

    cluster = training_cluster(request, place=None)
    trials, unable = find_trials(
        layouts,
        cluster=cluster,
        method=request.job.method,
        refused=refused,
        model=as_trained(request.job, model),
        own=request.job.stated_layout,
    )
    return Trials(
        job=job,
        request=request,
        overrides=tuple(overrides),
        cluster=cluster,
        trials=trials,
        unable=unable,
        on_update=on_update,
    )


def compare(
    job: Job | str | Path,
    *,
    layouts: Sequence[str],
    overrides: Sequence[str | Override] = (),
    steps: int | None = None,
    on_update: Callable[[Update | Trying], None] | None = None,
) -> Versus:
    """Runs a job under each layout and puts measurements and forecasts side by side.

    Each run lies in OUTPUT_DIR/compare/LAYOUT and can be resumed. The result is also written there,
    to compare.json and compare.html. A run that fails is listed, and the others go on. `layouts`:
    names such as `fsdp` or `fsdp-4`; `steps`: of each run; None for the job's own. Raises
    InputError: the job cannot be used, or none of the layouts can run here; StoppedError: a signal
    stopped it."""
    if not layouts or (steps is not None and steps < 1):
        raise InputError("nothing to compare: name layouts, such as single,ddp,fsdp, and at least 1 step")
    stated = [] if steps is None else [Override.of_flag("--steps", key="train.max_steps", value=steps)]
    trials = read_trials(job, layouts=layouts, overrides=[*overrides, *stated], on_update=on_update)
    if not trials.trials:
        raise nothing_to_compare(trials.unable)
    folder = Path(trials.asked.output_dir) / "compare"
    runs = {trial: _run_of(trials, trial, folder=folder) for trial in trials.trials}
    with trials.request.blaming("output_dir"):
        for trial, run in runs.items():
            check_same_place(run, trial, trials.cluster)
    again = "the same command goes on where it stopped"
    found = trials.each(lambda trial: _tried(trials, trial, run=runs[trial]), stopped=again)
    unable = [*trials.unable, *(one for one in found if isinstance(one, Unable))]
    ran = [one for one in found if isinstance(one, Contender)]
    lost = [one for one in found if isinstance(one, Failed)]
    if not ran and not lost:
        raise nothing_to_compare(unable)
    gpu, listed = trials.cluster.gpu, tuple((one.layout, one.reason) for one in unable)
    name, nominal = f"{trials.asked.model}, {trials.asked.method}", gpu.kind == "cpu" and not gpu.measured
    made = Versus(contenders=ranked(ran), job=name, unable=listed, failed=tuple(lost), nominal=nominal)
    with trials.request.blaming("output_dir"):
        _write(made, folder)
    return made


def _run_of(trials: Trials, trial: Trial, *, folder: Path) -> RunDirectory:
    """A folder named after the layout, and its processes where several numbers are compared."""
    several = sum(other.name == trial.name for other in trials.trials) > 1
    return RunDirectory(folder / (trial.label if several else trial.name))


def _tried(trials: Trials, trial: Trial, *, run: RunDirectory) -> Contender | Unable | Failed:
    try:
        result = trials.train(trial, run=run)
    except (DoesNotFitError, UnsupportedError) as error:
        return Unable(layout=trial.label, reason=str(error))
    except (WorkerFailedError, DamagedResultError) as error:
        return Failed(layout=trial.label, run=str(run.root), reason=str(error))
    best = read_plan(run.plan).best
    execution = None if best is None else best.execution
    return contender(trial.label, processes=trial.layout.world_size, run=run, report=result.report, execution=execution)


def _write(made: Versus, folder: Path) -> None:
    try:
        write_json(folder / "compare.json", made.to_json())
        write_text(folder / "compare.html", versus_html(made, _timelines(made)))
    except OSError as error:
        message = f"{folder}: the comparison cannot be written: {error.strerror}; free some space or check the rights"
        raise RunDirectoryError(message) from None


def _timelines(made: Versus) -> dict[str, Timeline]:
    drawn = [one for one in made.contenders if one.turns is not None]
    fastest = [made.contenders[0]] if drawn and made.contenders[0] not in drawn else []
    laid_out = {one.layout: timeline(read_plan(RunDirectory(Path(one.run)).plan)) for one in (*fastest, *drawn)}
    return {layout: found for layout, found in laid_out.items() if found is not None}
