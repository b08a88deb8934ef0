"""A job's layouts that this machine can run, for `verify` and `compare`; others with a reason."""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardwise.catalog.gpus import MAX_CPU_PROCESSES
from shardwise.errors import InputError, RunDirectoryError
from shardwise.launch.layout_names import ALL, DEALT, DEFAULT, EVERY_WAY, JOB, SINGLE, fewest, layout_of, parsed
from shardwise.launch.lock import locked
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Method
from shardwise.spec.layout.axes import Layout
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.file import read_plan
from shardwise.spec.request import Override
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.trained import misfit, refusal

#: Processes that may share a CPU, however few cores it has.
CPU_PROCESSES = 4


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One layout to run a job under."""

    name: str
    layout: Layout

    @property
    def label(self) -> str:
        """The layout and its processes, such as `fsdp-2`."""
        return f"{self.name}-{self.layout.world_size}"

    def overrides(self, cluster: Cluster, *, output_dir: str, place: str | None = None) -> list[Override]:
        """Sets a job's hardware, layout and run directory; `place`: of its own `output_dir`."""
        size = self.layout.world_size
        hardware = f"cpu:{size}" if cluster.gpu.kind == "cpu" else f"{size}x {cluster.gpu.name}"
        values = {"hardware": hardware, "layout": self.layout.to_json(), "output_dir": output_dir}
        places = {"output_dir": place} if place else {}
        return [
            Override(text=f"{key}={json.dumps(value)}", where=places.get(key, f"layout {self.label}"))
            for key, value in values.items()
        ]


#: What every other layout is compared with.
REFERENCE = Trial(name=SINGLE, layout=Layout())


@dataclass(frozen=True, kw_only=True)
class Unable:
    """A layout that cannot run here. `needs`: number of processes, where only these are missing."""

    layout: str
    reason: str
    needs: int | None = None


def find_trials(
    names: Sequence[str] | None,
    *,
    cluster: Cluster,
    method: Method,
    refused: Callable[[Layout], str | None] = lambda _: None,
    model: ModelShape | None = None,
    own: Layout | str | None = None,
) -> tuple[tuple[Trial, ...], tuple[Unable, ...]]:
    """The layouts to run, each on as many processes as the cluster has and it can use.

    Args:
        names: `fsdp`, `fsdp-4` for so many processes, `job`, or `all` for `EVERY_WAY`; None is
            `DEFAULT`. Both include `ep` of a mixture of experts, and the job's own layout.
        cluster: the hardware of the job. Processors stand for up to `CPU_PROCESSES` processes.
        refused: why the rest of the job is not trained under a layout, or None.
        model: of the job, or None where only layouts are asked about.
        own: the layout that the job states, by its degrees or by a name, or None.

    Raises:
        InputError: a name is no layout, or is `job` where the job states none.
    """
    stated = (JOB,) if isinstance(own, Layout) else ()
    if model is not None and model.has_experts:
        stated = (DEALT, *stated)
    named = [one for name in names or [] for one in ((*EVERY_WAY, *stated) if name == ALL else (name,))]
    wanted = [parsed(name) for name in named or (*DEFAULT, *stated)]
    found: dict[Layout | str, Trial | Unable] = {}
    room = max(CPU_PROCESSES, cluster.num_gpus) if cluster.gpu.kind == "cpu" else cluster.num_gpus

    def untried(layout: Layout, *, stated: bool = False) -> str | None:
        """Why not; first what other degrees would not change. `stated`: by the job."""
        return (
            (None if model is None else misfit(model, layout, stated=stated))
            or refusal(method=method, layout=layout, model=model, stated=stated)
            or refused(layout)
        )

    for name, size in wanted:
        one = _trial(name, size, cluster=cluster, untried=untried, own=own)
        if isinstance(one, Trial):
            needs, label = one.layout.world_size, one.label
            # Checked before the number of processes, which would not help.
            if (reason := untried(one.layout, stated=one.name == JOB)) is not None:
                one = Unable(layout=label, reason=reason)
            elif needs > room:
                reason = f"it needs {needs} processes, and {cluster.name} has room for {room}"
                one = Unable(layout=label, reason=reason, needs=needs)
        found.setdefault(one.layout, one)
    trials = tuple(one for one in found.values() if isinstance(one, Trial))
    return trials, tuple(one for one in found.values() if isinstance(one, Unable))


def nothing_to_compare(unable: Sequence[Unable], *, beside: str = "") -> InputError:
    """The error where none of the layouts can run here: the reasons, and what to write instead."""
    reasons = [f"{one.layout}: {one.reason}" for one in unable]
    return InputError("\n".join([*reasons, f"there is nothing to compare{beside}; {room_hint(unable)}"]))


def room_hint(unable: Sequence[Unable]) -> str:
    """The fewest processors on which one of the layouts can run."""
    needed = [one.needs for one in unable if one.needs and one.needs <= MAX_CPU_PROCESSES]
    if needed:
        return f"write --set hardware=cpu:{min(needed)} for as many processors"
    refused = {one.layout.rpartition("-")[0] for one in unable}
    return "write --layouts ddp,fsdp" if refused.isdisjoint(("ddp", "fsdp")) else "see the reasons above"


def _trial(
    name: str, size: int | None, *, cluster: Cluster, untried: Callable[[Layout], str | None], own: Layout | str | None
) -> Trial | Unable:
    if name != JOB:
        return _named(name, size, cluster=cluster, untried=untried)
    if own is None:
        raise InputError("--layouts names job, and the job states no layout (auto); state one there, or name one here")
    if isinstance(own, str):
        return _named(own, size, cluster=cluster, untried=untried)
    if size not in (None, own.world_size):
        return Unable(layout=f"{JOB}-{size}", reason=f"the job's layout is one of {own.world_size} processes")
    return Trial(name=JOB, layout=own)


def _named(name: str, size: int | None, *, cluster: Cluster, untried: Callable[[Layout], str | None]) -> Trial | Unable:
    least = fewest(name)
    size = size if size is not None else _processes(name, cluster=cluster, untried=untried)
    label = f"{name}-{size}"
    if size < least or (name == SINGLE and size > 1):
        reason = f"{name} is a layout of {least} processes{'' if name == SINGLE else ' or more'}"
        return Unable(layout=label, reason=reason)
    try:
        layout = layout_of(name, size)
    except ValueError as error:
        return Unable(layout=label, reason=str(error))
    return Trial(name=name, layout=layout)


def _processes(name: str, *, cluster: Cluster, untried: Callable[[Layout], str | None]) -> int:
    """As many as the cluster has, or the layout needs, minus those it or the model cannot use."""
    least = fewest(name)
    most = 1 if name == SINGLE else max(least, cluster.num_gpus)
    for size in range(most, least - 1, -1):
        with suppress(ValueError):  # they do not divide into it
            if untried(layout_of(name, size)) is None:
                return size
    return most


def clear(run: RunDirectory) -> None:
    """Removes the run of an earlier trial; RunDirectoryError if another program runs there."""
    if not run.resolved.is_file() or run.root.is_symlink():
        return
    with locked(run):
        try:
            shutil.rmtree(run.root)
        except OSError as error:
            raise RunDirectoryError(f"{run.root} cannot be removed: {error.strerror}; remove it by hand") from None


def check_same_place(run: RunDirectory, trial: Trial, cluster: Cluster) -> None:
    """Raises RunDirectoryError if the folder's run has another layout or other hardware."""
    if not run.plan.is_file():
        return
    plan = read_plan(run.plan)
    before, gpu = plan.best, plan.hardware.get("node", {}).get("gpu", {}).get("name")
    if before is None or (before.execution.layout == trial.layout and gpu == cluster.gpu.name):
        return
    raise RunDirectoryError(
        f"{run.root} holds a run on {plan.hardware.get('name')}, and this is {trial.label} on {cluster.gpu.name}; "
        "remove that folder, or set another output_dir"
    )
