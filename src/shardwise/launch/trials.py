"""Which layouts of a job this machine can hold: the list that `verify` and `compare` go through.

A trial is a layout on so many processes: one way of spreading the work, or a product of ways such as `fsdp+pp`. One
that cannot run here is listed with its reason, never left out silently.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from shardwise.errors import InputError, RunDirectoryError
from shardwise.launch.lock import locked
from shardwise.spec.cluster import Cluster
from shardwise.spec.job import Method
from shardwise.spec.layout import STRATEGIES, Layout
from shardwise.spec.model import ModelShape
from shardwise.spec.plan import read_plan
from shardwise.spec.request import Override
from shardwise.spec.run import RunDirectory
from shardwise.spec.support import TRAINABLE, refusal

SINGLE = "single"

#: Processors can be shared by more processes than there are cores; with more than this the machine only waits.
CPU_PROCESSES = 4

#: The fewest processes that make each way what it is.
FEWEST = {SINGLE: 1, "hsdp": 4}

#: Ways that split the model and not the data; in a product each has two ranks, and the way of the data has the rest.
SPLITS = ("mp", "pp", "tp")

#: Tried beside every single way, where nothing is named.
PRODUCTS = ("ddp+pp", "fsdp+pp", "fsdp+tp", "tp+pp")

_NAME = re.compile(r"([a-z0-9+]+?)(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One layout to run a job under."""

    name: str
    layout: Layout

    @property
    def label(self) -> str:
        """`fsdp-2`: the layout and its processes."""
        return f"{self.name}-{self.layout.world_size}"

    def overrides(self, cluster: Cluster, *, output_dir: str) -> list[Override]:
        """What makes a job this trial: its hardware, its layout and its run directory."""
        size = self.layout.world_size
        hardware = f"cpu:{size}" if cluster.gpu.kind == "cpu" else f"{size}x {cluster.gpu.name}"
        values = {"hardware": hardware, "layout": self.layout.to_json(), "output_dir": output_dir}
        return [
            Override(text=f"{key}={json.dumps(value)}", where=f"layout {self.label}") for key, value in values.items()
        ]


#: What every other layout is compared with.
REFERENCE = Trial(name=SINGLE, layout=Layout())


@dataclass(frozen=True, kw_only=True)
class Unable:
    """A layout that cannot run here, and why."""

    layout: str
    reason: str


def find_trials(
    names: Sequence[str] | None, *, cluster: Cluster, method: Method, model: ModelShape | None = None
) -> tuple[tuple[Trial, ...], tuple[Unable, ...]]:
    """The layouts to try, each on as many processes as the cluster has, or as it needs at least.

    Args:
        names: `fsdp`, or `fsdp-4` for so many processes; None is every layout that is trained at all.
        cluster: the hardware of the job, which is here. Processors stand for up to `CPU_PROCESSES` processes.
        method: of the job.
        model: of the job, which not every layout trains; None where only layouts are asked about.

    Raises:
        InputError: a name is no layout.
    """
    wanted = [_parsed(name) for name in names or (*TRAINABLE, *PRODUCTS)]
    found = [_trial(name, size, cluster=cluster, method=method, model=model) for name, size in wanted]
    distinct = {one.label if isinstance(one, Trial) else one.layout: one for one in found}.values()
    trials = tuple(one for one in distinct if isinstance(one, Trial))
    return trials, tuple(one for one in distinct if isinstance(one, Unable))


def _parsed(text: str) -> tuple[str, int | None]:
    known = (SINGLE, *STRATEGIES)
    match = _NAME.fullmatch(text)
    if match is None or not _is_product(match[1]):
        near = difflib.get_close_matches(text, known, n=1)
        hint = (
            f"; did you mean {near[0]!r}?"
            if near
            else f"; the layouts are {', '.join(known)}, and fsdp+pp is a product"
        )
        raise InputError(f"--layouts names {text!r}, which is no layout{hint}; fsdp-4 is fsdp on 4 processes")
    return match[1], int(match[2]) if match[2] else None


def own_trial(layout: Layout, *, cluster: Cluster) -> Trial | Unable:
    """The layout that the job itself states by its degrees, which may be one that no name stands for."""
    trial = Trial(name="job", layout=layout)
    if layout.world_size > _room(cluster):
        reason = f"it needs {layout.world_size} processes, and {cluster.name} has room for {_room(cluster)}"
        return Unable(layout=trial.label, reason=reason)
    return trial


def _is_product(name: str) -> bool:
    """Whether a name is one way, or one way of the data at most and different ways of splitting the model."""
    ways = name.split("+")
    data = [way for way in ways if way not in SPLITS]
    alone = len(ways) == 1 and name in (SINGLE, *STRATEGIES)
    return alone or (
        len(set(ways)) == len(ways)
        and len(data) <= 1
        and all(way in STRATEGIES for way in ways)
        and not {"mp", "pp"} <= set(ways)
    )


def _fewest(name: str) -> int:
    """The fewest processes that make a layout what it is."""
    return prod(FEWEST.get(way, 2) for way in name.split("+"))


def _layout(name: str, size: int) -> Layout:
    """The layout of a name on so many processes.

    Raises:
        ValueError: they do not multiply out to it.
    """
    ways = name.split("+")
    if len(ways) == 1:
        return Layout() if name == SINGLE else Layout.from_strategy(name, world_size=size)
    splits = [way for way in ways if way in SPLITS]
    left, odd = divmod(size, 2 ** len(splits))
    if odd or (len(splits) == len(ways) and left > 1):
        raise ValueError(
            f"{name} has 2 ranks for each of {', '.join(splits)}, which {size} processes do not divide into"
        )
    data = next((way for way in ways if way not in SPLITS), SINGLE)
    layout = Layout() if data == SINGLE else Layout.from_strategy(data, world_size=left)
    stages = 2 if {"mp", "pp"} & set(ways) else 1
    schedule = "sequential" if "mp" in ways else layout.schedule
    return replace(layout, pp=stages, tp=2 if "tp" in ways else 1, schedule=schedule)


def _trial(
    name: str, size: int | None, *, cluster: Cluster, method: Method, model: ModelShape | None
) -> Trial | Unable:
    fewest = _fewest(name)
    size = size if size is not None else _processes(name, fewest, cluster)
    label = f"{name}-{size}"
    if size < fewest or (name == SINGLE and size > 1):
        return Unable(
            layout=label, reason=f"{name} is a layout of {fewest} processes{'' if name == SINGLE else ' or more'}"
        )
    if size > _room(cluster):
        return Unable(
            layout=label, reason=f"it needs {size} processes, and {cluster.name} has room for {_room(cluster)}"
        )
    try:
        layout = _layout(name, size)
    except ValueError as error:
        return Unable(layout=label, reason=str(error))
    reason = refusal(method=method, layout=layout, model=model)
    return Trial(name=name, layout=layout) if reason is None else Unable(layout=label, reason=reason)


def _processes(name: str, fewest: int, cluster: Cluster) -> int:
    return 1 if name == SINGLE else max(fewest, cluster.num_gpus)


def _room(cluster: Cluster) -> int:
    return max(CPU_PROCESSES, cluster.num_gpus) if cluster.gpu.kind == "cpu" else cluster.num_gpus


def clear(run: RunDirectory) -> None:
    """Removes the run of an earlier trial, so that a proof never rests on what another version once did.

    Raises:
        RunDirectoryError: another program is running there. What is no run directory is left for the start to refuse.
    """
    if not run.resolved.is_file() or run.root.is_symlink():
        return
    with locked(run):
        try:
            shutil.rmtree(run.root)
        except OSError as error:
            raise RunDirectoryError(f"{run.root} cannot be removed: {error.strerror}; remove it by hand") from None


def check_same_place(run: RunDirectory, trial: Trial, cluster: Cluster) -> None:
    """A run may go on under another layout, but then its figures are not those of one layout.

    Raises:
        RunDirectoryError: the folder holds a run of another layout or other hardware.
    """
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
