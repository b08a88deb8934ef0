"""`compare`: runs a job under several layouts and puts the measurements side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shardwise.api.checks.trials import Trials, Trying, read_trials
from shardwise.api.plans.planning import timeline
from shardwise.api.runs.opening import Programs, Update
from shardwise.errors import (
    DamagedResultError,
    DoesNotFitError,
    InputError,
    RunDirectoryError,
    UnsupportedError,
    WorkerFailedError,
)
from shardwise.launch.trials import Trial, Unable, check_same_place, nothing_to_compare
from shardwise.report.pages.plan_page import versus_html
from shardwise.report.versus import Contender, Failed, Versus, contender, ranked
from shardwise.spec.job.keys import Job
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.timeline import Timeline
from shardwise.spec.request import Override
from shardwise.spec.run import RunDirectory, write_json, write_text


def compare(
    job: Job | str | Path,
    *,
    layouts: Sequence[str],
    overrides: Sequence[str | Override] = (),
    steps: int | None = None,
    on_update: Callable[[Update | Trying], None] | None = None,
    programs: Programs | None = None,
) -> Versus:
    """Runs a job under each layout and puts measurements and forecasts side by side.

    Each run lies in OUTPUT_DIR/compare/LAYOUT and can be resumed. The result is also written there,
    to compare.json and compare.html. A run that fails is listed, and the others go on.

    Args:
        layouts: names such as `fsdp` or `fsdp-4`.
        steps: optimizer steps of each run; None for the job's own.

    Raises:
        InputError: the job cannot be used, or none of the layouts can run here.
        StoppedError: a signal stopped it.
    """
    if not layouts or (steps is not None and steps < 1):
        raise InputError("nothing to compare: name layouts, such as single,ddp,fsdp, and at least 1 step")
    stated = [] if steps is None else [Override.of_flag("--steps", key="train.max_steps", value=steps)]
    trials = read_trials(job, layouts=layouts, overrides=[*overrides, *stated], on_update=on_update, programs=programs)
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
