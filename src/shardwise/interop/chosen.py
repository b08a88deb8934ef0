"""What every target reads of a plan, and what a target makes of it"""

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Self

from shardwise.catalog.models import hub_id
from shardwise.catalog.offers import machine_sizes
from shardwise.errors import UnsupportedError
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Plan
from shardwise.units import GIB

#: What each rank asks of its machine: cores for its own thread, that of backward, NCCL's and the
#: one that writes checkpoints; and memory to begin with, on top of which comes what lies there.
CORES, GIB_OF_HOST = 4, 16


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What a target makes of a plan. `files`: name -> text, the first served by the others; `said`:
    sentences on what differs from the plan or is left to the user; `run`: next commands, with
    `is_run_inside` where the files lie."""

    files: dict[str, str]
    said: list[str] = field(default_factory=list[str])
    run: list[str]
    is_run_inside: bool = False

    def run_with(self, folder: str | Path) -> list[str]:
        """The commands, with the files where they lie: in a folder, named as from here."""
        if self.is_run_inside:
            return [f"cd {shlex.quote(str(folder))} && {line}" for line in self.run]
        places = {name: shlex.quote(str(Path(folder) / name)) for name in self.files}
        words = re.compile(rf"(?<!\S)({'|'.join(map(re.escape, places))})(?=[\s;]|$)")
        return [words.sub(lambda word: places[word[1]], line) for line in self.run]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The chosen candidate of a plan, with its job. `path`: as the user named it; `cluster`: one
    node or part of it, or whole nodes; `leaves_some`: the job's hardware has more GPUs; `seconds`,
    `steps`: of the run, where known; `host_bytes`: what a rank puts into the host's memory; `sets`:
    what `--set` says beside the file."""

    path: str
    job: Job
    execution: Execution
    cluster: Cluster
    leaves_some: bool = False
    seconds: float | None = None
    steps: int | None = None
    host_bytes: int = 0
    sets: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: Plan, *, path: str) -> Self:
        """Raises UnsupportedError: the plan chose nothing, or uses parts of several nodes."""
        best = plan.best
        if best is None:
            raise UnsupportedError(f"{path}: nothing fits, and so there is nothing to export; plan a smaller job")
        size, cluster = best.execution.layout.world_size, Cluster.from_json(plan.hardware)
        part, job, time = cluster.part(size), job_from_data(plan.job), best.time
        steps = job.train.max_steps
        if steps is None and time.total_seconds is not None:
            steps = round(time.total_seconds / time.step_seconds)
        if part.num_gpus != size:
            raise UnsupportedError(
                f"{path}: the layout spreads over {size} GPUs of nodes with {cluster.node.num_gpus}, which are not "
                "whole nodes; plan for whole nodes, or for part of one"
            )
        return cls(
            path=path,
            job=job,
            execution=best.execution,
            cluster=part,
            leaves_some=size < cluster.num_gpus,
            seconds=time.total_seconds,
            steps=steps,
        )

    @property
    def layout(self) -> Layout:
        """Of the execution."""
        return self.execution.layout

    @property
    def on_cpu(self) -> bool:
        """Whether processes of a CPU stand in for GPUs."""
        return self.cluster.gpu.kind == "cpu"

    @property
    def on_amd(self) -> bool:
        """Whether the GPUs are AMD's."""
        return self.cluster.gpu.name.startswith("MI")

    @property
    def nodes(self) -> int:
        """Machines."""
        return self.cluster.num_nodes

    @property
    def processes(self) -> int:
        """Of each machine, one for each GPU."""
        return self.cluster.node.num_gpus

    @property
    def takes_machine(self) -> bool:
        """Whether the layout takes whole machines: several, or the largest that is rented out."""
        return self.nodes > 1 or self.processes in machine_sizes(self.cluster.gpu.name)[-1:]

    @property
    def gib_of_host(self) -> int:
        """What one machine's ranks ask of the host's memory."""
        return self.processes * (GIB_OF_HOST + math.ceil(self.host_bytes / GIB))

    @property
    def model(self) -> str:
        """A folder or a hub id; names of the catalogue are for planning."""
        return self.job.model if Path(self.job.model).exists() else hub_id(self.job.model)

    @property
    def name(self) -> str:
        """The run's, as Kubernetes and clouds allow: letters, digits, hyphens, a letter first."""
        name = re.sub(r"[^a-z0-9]", "-", Path(self.job.output_dir).name.lower()).strip("-")[:40].strip("-")
        return name if name[:1].isalpha() else f"run-{name}".strip("-")

    @property
    def written(self) -> str:
        """Strategy and hardware: `fsdp x tp on 2 x 8x H100-SXM`."""
        return f"{self.layout.strategy} on {self.cluster.name}"

    @property
    def train(self) -> str:
        """The arguments of the program that trains it, with the GPUs that the layout takes."""
        here = (f"hardware={self.cluster.name}",) if self.leaves_some else ()
        sets = (*(one for one in self.sets if not here or not one.startswith("hardware=")), *here)
        return shlex.join(["train", self.path, *(word for one in sets for word in ("--set", one))])

    def torchrun(self, script: str, *, rank: str = "0", address: str = "") -> str:
        """The line that starts a script or `-m module` on one machine. `rank`, `address`: of this
        machine, and where the first one is reached, as the shell shall read them."""
        if self.nodes == 1:
            return f"torchrun --standalone --nproc-per-node {self.processes} {script}"
        group = f"--nnodes {self.nodes} --nproc-per-node {self.processes} --node-rank {rank}"
        return f"torchrun {group} --master-addr {address} --master-port 29500 {script}"

    def torchrun_lines(self, script: str) -> list[str]:
        """The line of each node, with the first node's address in NODE_0."""
        return self.on_each_node(lambda rank: self.torchrun(script, rank=str(rank), address='"$NODE_0"'))

    def on_each_node(self, line: Callable[[int], str]) -> list[str]:
        """The line of each node; a comment behind it names the node where there are several."""
        return [line(rank) + f"  # node {rank}" * (self.nodes > 1) for rank in range(self.nodes)]


def script(name: str, *, mark: str = "$") -> Template:
    """A file of `interop/scripts`, in which names behind `mark` are filled in."""

    class Marked(Template):
        delimiter = mark

    return Marked(files("shardwise.interop").joinpath("scripts", name).read_text(encoding="utf-8"))


def as_yaml(data: dict[str, Any], *, comment: Sequence[str] = ()) -> str:
    """YAML with comment lines on top."""
    import io

    from ruamel.yaml import YAML

    yaml: Any = YAML(typ="rt", pure=True)
    yaml.default_flow_style, yaml.width = False, 4096
    yaml.representer.add_representer(float, _as_float)
    text = io.StringIO()
    yaml.dump(_with_blocks(data), text)
    return "".join(f"# {line}\n" for line in comment) + text.getvalue()


def _as_float(representer: Any, value: float) -> Any:
    """`1.0e-08`: YAML 1.1, which PyYAML reads, takes `1e-08` for text."""
    text = repr(value)
    written = text.replace("e", ".0e") if "e" in text and "." not in text else text
    return representer.represent_scalar("tag:yaml.org,2002:float", written)


#: Words that YAML 1.1, which PyYAML reads, takes for true or false.
_BOOLEANS = ("yes", "no", "on", "off", "y", "n")


def _with_blocks(value: Any) -> Any:
    """Texts of several lines are written as they are; words with another reading are quoted."""
    from ruamel.yaml.scalarstring import LiteralScalarString, SingleQuotedScalarString

    if isinstance(value, dict):
        return {key: _with_blocks(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_with_blocks(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return SingleQuotedScalarString(value)
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
