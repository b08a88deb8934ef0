"""What must hold before training: the hardware is there, and this version trains what is asked."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from shardwise.catalog.gpus import cluster_of, parse_hardware
from shardwise.catalog.probe import PROBED, c_compiler, known_or_nominal, probed_machine, this_machine
from shardwise.errors import HardwareError, InputError, Problem, UnsupportedError
from shardwise.launch.nodes.meeting import Nodes
from shardwise.launch.processes.torchrun import Place
from shardwise.spec.cluster import Cluster, Gpu
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.request import Request
from shardwise.spec.support.attention import stated_attention_refusal
from shardwise.spec.support.rows import Reason
from shardwise.spec.support.trained import execution_refusals
from shardwise.units import format_gib

#: Of the memory of the hardware that a job names, what a GPU of another name must have.
_ENOUGH_MEMORY = 0.97


def training_cluster(request: Request, *, place: Place | None) -> Cluster:
    """The hardware a training runs on: what the job names, if it is there; else this machine. Its
    memory is what is free on the GPUs of this machine. `place`: set where something else has
    started the ranks, whose number then is given. Raises HardwareError: what the job names is not
    here, or has another number of GPUs than ranks were started."""
    with request.blaming("hardware"):
        if place is not None:
            return _started_cluster(request.job.hardware, place)
        if request.job.hardware is None:
            return this_machine()
        if request.job.hardware == PROBED:
            return probed_machine()
        cluster = _named(request.job.hardware)
        if cluster.num_nodes > 1:
            raise HardwareError(
                f"hardware is {cluster.name}, {cluster.num_nodes} machines; start the job on each, by `shardwise train "
                f"JOB --nodes {cluster.num_nodes} --node-rank 0 --master NODE0` with the rank of each, or by "
                f"`torchrun --nnodes {cluster.num_nodes} --nproc-per-node {cluster.node.num_gpus} ... "
                "-m shardwise.cli.main train JOB`"
            )
        return _as_here(cluster)


def share_of_nodes(request: Request, nodes: Nodes) -> Place:
    """The place of node 0's first rank where each machine takes an equal share of the hardware that
    a job names, or has as much as this one. Raises HardwareError: it cannot be shared so."""
    with request.blaming("hardware"):
        named = request.job.hardware
        cluster = this_machine() if named is None else _named(named)
        if named is not None and cluster.gpu.kind == "cuda" and cluster.num_nodes != nodes.count:
            raise HardwareError(
                f"hardware is {cluster.name}, {cluster.num_nodes} machines, and --nodes is {nodes.count}; make them "
                "equal"
            )
        if named is not None and cluster.num_gpus % nodes.count:
            raise HardwareError(f"hardware is {cluster.name}, and --nodes is {nodes.count}; name a multiple of that")
        local = cluster.num_gpus if named is None else cluster.num_gpus // nodes.count
        return Place(rank=0, size=local * nodes.count, local_size=local, launch="")


def _named(text: str) -> Cluster:
    """Hardware by its name in the catalogue, or by the name of this machine's GPUs outside it."""
    try:
        return parse_hardware(text)
    except HardwareError:
        count, _, name = text.partition("x ")
        machine = this_machine() if count.isdigit() else None
        if machine is None or name != machine.gpu.name or not 0 < int(count) <= machine.num_gpus:
            raise
        return replace(machine.part(int(count)), notes=())


def _as_here(cluster: Cluster, *, place: Place | None = None) -> Cluster:
    """The hardware a job names, with this machine's GPU memory, which must be a node's share."""
    if cluster.gpu.kind == "cpu":
        return cluster
    share = cluster.node.num_gpus
    machine = this_machine(used=share)
    here = "no GPU" if machine.gpu.kind == "cpu" else machine.name
    enough = machine.num_gpus >= share or _each_sees_its_own(machine, place)
    note = _stands_in(machine.gpu, cluster.gpu)
    if machine.gpu.kind == "cpu" or not enough or not (note or machine.gpu.name == cluster.gpu.name):
        each = f", {share} on each machine" if cluster.num_nodes > 1 else ""
        raise HardwareError(
            f"hardware is {cluster.name}{each}, and this machine has {here}; plan for other machines, but train on "
            "this one: leave hardware out, or name what is here (cpu:N for N processes)"
        )
    memory = {"memory_bytes": machine.gpu.memory_bytes, "reserved_bytes": machine.gpu.reserved_bytes}
    notes = (note, *machine.notes[1:]) if note else machine.notes
    return replace(cluster, node=replace(cluster.node, gpu=replace(cluster.gpu, **memory)), notes=notes)


def _stands_in(here: Gpu, named: Gpu) -> str | None:
    """What is said where an unknown GPU is taken, by its memory, for the one that a job names."""
    unknown = here.kind == "cuda" and here.name != named.name and known_or_nominal(here.name)[1] is not None
    if not unknown or here.memory_bytes < _ENOUGH_MEMORY * named.memory_bytes:
        return None
    return (
        f"hardware names {named.name}, and the driver calls this GPU {here.name}, which is not in the catalogue; it is "
        f"taken for one by its {format_gib(here.memory_bytes)}, and times are those of {named.name}"
    )


def _each_sees_its_own(machine: Cluster, place: Place | None) -> bool:
    """Ranks that something else started may each be given one GPU (`srun --gpus-per-task=1`)."""
    stated = os.environ.get("CUDA_VISIBLE_DEVICES", ",")
    return place is not None and machine.num_gpus == 1 and "," not in stated


def _started_cluster(named: str | None, place: Place) -> Cluster:
    if named is not None:
        cluster = _named(named)
        if cluster.num_gpus != place.size:
            raise HardwareError(
                f"hardware is {cluster.name}, {cluster.num_gpus} processes, and {place.size} were started; "
                "start as many, or leave hardware out"
            )
        return _as_here(cluster, place=place)
    machine = this_machine(used=place.local_size)
    if machine.gpu.kind == "cpu":
        return parse_hardware(f"cpu:{place.size}")
    if place.local_size > machine.num_gpus and not _each_sees_its_own(machine, place):
        raise HardwareError(
            f"{place.local_size} processes were started on a machine with {machine.name}; start one for each GPU, or "
            "set CUDA_VISIBLE_DEVICES of each process to the one that it sees"
        )
    known = replace(known_or_nominal(machine.gpu.name)[0], gpu=machine.gpu)
    cluster = cluster_of(known, num_gpus=place.local_size, num_nodes=place.size // place.local_size)
    return replace(cluster, notes=machine.notes)


def check_trainable(request: Request, *, cluster: Cluster) -> None:
    """Refuses what is planned for but not trained, before anything is downloaded. UnsupportedError:
    with every reason; InputError: there are no rows, or another number of processes."""
    job = request.job
    if not job.data.path:
        raise InputError.at(request.where("data"), "data.path is missing; planning can do without, training needs rows")
    reasons = execution_refusals(job, _asked(request, cluster=cluster))
    if reasons:
        raise UnsupportedError([Problem(where=place_of(request, reason), message=reason) for reason in reasons])


#: Paths that end so are files and no hub ids, whether they exist or not.
_FILE_ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt", ".gz", ".xlsx")

#: What a value of a key needs installed: key, value, module, and how to get it.
_TRACKERS = (
    ("report_to", "wandb", "wandb", "pip install wandb"),
    ("report_to", "mlflow", "mlflow", "pip install mlflow-skinny"),
)
_KERNELS = (
    ("attn_implementation", "flash_attention_2", "flash_attn", "pip install flash-attn, or use sdpa"),
    ("attn_implementation", "flash_attention_3", "flash_attn_interface", "use sdpa"),
)


def check_present(request: Request, cluster: Cluster) -> None:
    """Finds what the job names and this machine lacks, each at its place in the job. Raises
    InputError: missing files, packages that are not installed, kernels the hardware lacks."""
    lacking = [*_missing_packages(request, _KERNELS)]
    if message := stated_attention_refusal(request.job, cluster.gpu):
        lacking = [Problem(where=request.where("train", "attn_implementation"), message=message)]
    missing = [*_missing_files(request), *_missing_packages(request, _TRACKERS)]
    if find_spec("bitsandbytes") is None:
        missing += _needing_bitsandbytes(request)
    if problems := [*missing, *lacking]:
        raise InputError(problems)


def check_compiler(request: Request, *, compiles: bool) -> None:
    """Raises InputError: blocks are to be compiled for GPUs, without a C compiler for Triton."""
    if compiles and c_compiler() is None:
        message = (
            "compiled blocks need a C compiler, and neither CC names one nor is there gcc, cc or clang; install gcc, "
            "or set train.compile: false"
        )
        raise InputError.at(request.where("train", "compile"), message)


def _needing_bitsandbytes(request: Request) -> Iterator[Problem]:
    how = "needs bitsandbytes, which is not installed; run: pip install 'shardwise[qlora]'"
    if request.job.method == "qlora":
        yield Problem(where=request.where("method"), message=f"method qlora {how}")
    if (train := request.job.train).optimizer_rule.in_8_bits:
        yield Problem(where=request.where("train", "optimizer"), message=f"optimizer {train.optimizer} {how}")


def _missing_files(request: Request) -> Iterator[Problem]:
    data = request.job.data
    for key, sources in (("path", data.path), ("eval_path", data.eval_path)):
        for index, path in enumerate(source.path for source in sources):
            is_file = path.startswith(("/", ".")) or path.lower().endswith(_FILE_ENDINGS)
            if is_file and not Path(path).exists():
                message = f"data.{key} names {path}, which does not exist"
                yield Problem(where=request.where("data", key, index), message=message)
    if data.chat_template is not None and not Path(data.chat_template).is_file():
        message = f"data.chat_template names {data.chat_template}, which is no file; expected a Jinja template"
        yield Problem(where=request.where("data", "chat_template"), message=message)


def _missing_packages(request: Request, packages: Sequence[tuple[str, str, str, str]]) -> Iterator[Problem]:
    train = request.job.train
    for key, value, module, remedy in packages:
        stated = getattr(train, key)
        if value in (stated if isinstance(stated, list) else [stated]) and find_spec(module) is None:
            message = f"train.{key} names {value}, which is not installed; {remedy}"
            yield Problem(where=request.where("train", key), message=message)


def _asked(request: Request, *, cluster: Cluster) -> Execution:
    """The job's stated choices on the layout it states, with the plainest where it states none."""
    processes = cluster.num_gpus
    try:
        layout = request.job.layout_on(cluster) or Layout(dp_replicate=processes)
    except ValueError as error:
        raise InputError.at(request.where("layout"), str(error)) from None
    if layout.world_size != processes:
        message = (
            f"layout needs {layout.world_size} processes, and the hardware gives {processes}; write one for "
            f"{processes}, or layout: auto, which plans for what is there"
        )
        raise InputError.at(request.where("layout"), message)
    return stated_execution(request.job, layout)


def stated_execution(job: Job, layout: Layout) -> Execution:
    """What a job states of how a layout executes a step, with the plainest choice where open."""
    train = job.train
    return Execution(
        layout=layout,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        offload="none" if train.offload == "auto" else train.offload,
        precision="mixed" if train.precision == "auto" else train.precision,
        optimizer="adamw" if train.optimizer == "auto" else train.optimizer,
        gradient_checkpointing="none" if train.gradient_checkpointing == "auto" else train.gradient_checkpointing,
        compile=train.compile is True,
    )


def place_of(request: Request, reason: str, *, otherwise: str = "layout") -> str:
    """The place of the key that a reason is about. `request`: whose; `reason`: why something is not
    trained; `otherwise`: the key of what is said of the layout."""
    key = reason.row.key if isinstance(reason, Reason) else "layout"
    return request.where(*(otherwise if key == "layout" else key).split("."))
