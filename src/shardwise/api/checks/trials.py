"""Runs one job under several layouts, for `verify` and `compare`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from shardwise.api.plans.shapes import find_model, read_request
from shardwise.api.runs.opening import Programs, Update
from shardwise.api.runs.training import TrainResult, train
from shardwise.errors import InputError, Problem, StoppedError, UnsupportedError
from shardwise.launch.processes.stop_requests import StopRequests
from shardwise.launch.processes.torchrun import place_in_group
from shardwise.launch.requirements import stated_execution, training_cluster
from shardwise.launch.trials import Trial, Unable, find_trials
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.request import Override, Request
from shardwise.spec.run import RunDirectory
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
    programs: Programs | None

    @property
    def asked(self) -> Job:
        """The job as it was read."""
        return self.request.job

    def each(self, do: Callable[[Trial], T], *, stopped: str) -> list[T]:
        """Runs a function for each trial until a signal asks to stop; `stopped` says what a stop
        between two means."""
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
            programs=replace(self.programs or Programs(), quiet=number > 1 or bool(again)),
        )


def read_trials(
    job: Job | str | Path,
    *,
    layouts: Sequence[str] | None,
    overrides: Sequence[str | Override],
    on_update: Callable[[Update | Trying], None] | None,
    programs: Programs | None,
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
        programs=programs,
    )
