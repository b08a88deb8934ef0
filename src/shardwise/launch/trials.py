"""A job's layouts by their names (a strategy, or a product such as `fsdp+pp`), for `verify` and
`compare`: those that this machine can run, others with a reason."""

import difflib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from shardwise.catalog.gpus import MAX_CPU_PROCESSES
from shardwise.errors import InputError, RunDirectoryError
from shardwise.launch.lock import locked
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.keys import Method
from shardwise.spec.job.validation_errors import FROM_OTHER_TOOLS
from shardwise.spec.layout.axes import STRATEGIES, Layout, Schedule
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.plan.file import read_plan
from shardwise.spec.request import Override
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.trained import TRAINED_WAYS, misfit, refusal

SINGLE = "single"

#: The layout that the job itself states.
JOB = "job"

#: The ways that cut the model in stages -> their pipeline schedule.
STAGINGS: dict[str, Schedule] = {
    "mp": "sequential",
    "pp": "1f1b",
    "gpipe": "gpipe",
    "interleaved": "interleaved",
    "zero_bubble": "zero_bubble",
}

#: Ways that split the model; in a product each has two ranks, and the way of the data has the rest.
SPLITS = (*STAGINGS, "tp", "cp")

#: Experts dealt among pairs of ranks with different samples; of `fsdp` without a way of the data.
DEALT = "ep"

#: Ways by their names, beside `single` and `job`.
WAYS = tuple(dict.fromkeys((*STRATEGIES, *STAGINGS, DEALT)))

#: The name of `EVERY_WAY`.
ALL = "all"

#: What `verify` runs where nothing is named: one layout of each kind.
DEFAULT = (SINGLE, "ddp", "zero1", "fsdp", "tp", "cp", "mp", "pp", "fsdp+tp", "fsdp+pp")

#: Products that `all` runs.
PRODUCTS = ("ddp+pp", "fsdp+pp", "fsdp+mp", "fsdp+tp", "tp+pp", "hsdp+tp", "fsdp+cp", "fsdp+tp+pp")

#: Every single way of models without experts, each schedule, and the products.
EVERY_WAY = tuple(dict.fromkeys((*(way for way in TRAINED_WAYS if way != DEALT), *STAGINGS, *PRODUCTS)))

#: The fewest processes that make each way what it is.
_FEWEST = {SINGLE: 1, "hsdp": 4, DEALT: 1}

_NAME = re.compile(r"([a-z0-9_+]+?)(?:-(\d+))?")


def parsed(text: str) -> tuple[str, int | None]:
    """A name and its processes: `fsdp-4`; `pp:gpipe` is `gpipe`. Raises InputError: no layout."""
    match = _NAME.fullmatch(text.replace("pp:1f1b", "pp").replace("pp:", ""))
    if match is None or not _is_layout(match[1]):
        known = (SINGLE, JOB, ALL, *WAYS)
        near = difflib.get_close_matches(text, known, n=1)
        others = f"; the layouts are {', '.join(known)}, and fsdp+pp is a product"
        hint = f"; did you mean {near[0]!r}?" if near else others
        hint = f"; {FROM_OTHER_TOOLS[text]}" if text in FROM_OTHER_TOOLS else hint
        raise InputError(f"--layouts names {text!r}, which is no layout{hint}; fsdp-4 is fsdp on 4 processes")
    return match[1], int(match[2]) if match[2] else None


def _is_layout(name: str) -> bool:
    """Whether a name is one way, or at most one of the data times different ways of the model."""
    ways = name.split("+")
    if len(ways) == 1:
        return name in {SINGLE, JOB, *WAYS}
    data = [way for way in ways if way not in (*SPLITS, DEALT)]
    stagings = [way for way in ways if way in STAGINGS]
    return set(ways) <= set(WAYS) and len(set(ways)) == len(ways) and len(data) <= 1 and len(stagings) <= 1


def fewest(name: str) -> int:
    """The fewest processes that make a layout what it is."""
    return max(2 if name == DEALT else 1, prod(_FEWEST.get(way, 2) for way in name.split("+")))


def layout_of(name: str, size: int) -> Layout:
    """The layout of a name on so many processes. Raises ValueError: they do not divide into it."""
    ways = name.split("+")
    if DEALT in ways:
        return replace(layout_of("+".join([way for way in ways if way != DEALT]) or "fsdp", size), ep=2)
    staging = next((way for way in ways if way in STAGINGS), None)
    if len(ways) == 1:
        if staging is not None:
            return Layout(pp=size, schedule=STAGINGS[staging])
        return Layout() if name == SINGLE else Layout.from_strategy(name, world_size=size)
    splits = [way for way in ways if way in SPLITS]
    left, odd = divmod(size, 2 ** len(splits))
    if odd or (len(splits) == len(ways) and left > 1):
        raise ValueError(
            f"{name} has 2 ranks for each of {', '.join(splits)}, which {size} processes do not divide into"
        )
    data = next((way for way in ways if way not in SPLITS), None)
    layout = Layout() if data is None else Layout.from_strategy(data, world_size=left)
    schedule = layout.schedule if staging is None else STAGINGS[staging]
    tp, cp = (2 if axis in ways else 1 for axis in ("tp", "cp"))
    return replace(layout, pp=1 if staging is None else 2, tp=tp, cp=cp, schedule=schedule)


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
    """The layouts to run, each on as many processes as the cluster has and it can use; processors
    stand for up to `CPU_PROCESSES`. Raises InputError: a name is no layout, or `job` without one.

    `names`: `fsdp`, `fsdp-4` for so many processes, `job`, or `all` for `EVERY_WAY`; None is
    `DEFAULT`. Both include `ep` of a mixture of experts, and the job's own layout. `refused`: why
    the rest of the job is not trained under a layout, or None; `model`: of the job, or None where
    only layouts are asked about; `own`: the layout that it states, by degrees or by a name."""
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
