"""What must hold before a training starts: the hardware is there, and this version trains what is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.probe import this_machine
from shardwise.errors import HardwareError, InputError, Problem, UnsupportedError
from shardwise.launch.joined import Place
from shardwise.spec.attention import stated_attention_refusal
from shardwise.spec.cluster import Cluster
from shardwise.spec.execution import Execution
from shardwise.spec.job import Job, LayoutSpec
from shardwise.spec.layout import Layout
from shardwise.spec.request import Request
from shardwise.spec.support import NO_EXPERTS, execution_refusals


def training_cluster(request: Request, *, place: Place | None) -> Cluster:
    """The hardware a training runs on: what the job names, if it is there; else this machine.

    Args:
        place: set where something else has started the ranks, whose number then is given.

    Raises:
        HardwareError: what the job names is not here, or has another number of GPUs than ranks were started.
    """
    with request.blaming("hardware"):
        if place is not None:
            return _started_cluster(request.job.hardware, place)
        if request.job.hardware is None:
            return this_machine()
        cluster = parse_hardware(request.job.hardware)
        _check_present(cluster)
        return cluster


def _check_present(cluster: Cluster) -> None:
    if cluster.num_nodes > 1:
        raise HardwareError(
            f"hardware is {cluster.name}, {cluster.num_nodes} machines; start the job on each, for example by "
            f"`torchrun --nnodes {cluster.num_nodes} --nproc-per-node {cluster.node.num_gpus} ... "
            "-m shardwise.cli.main train JOB`"
        )
    _check_gpus(cluster)


def _check_gpus(cluster: Cluster) -> None:
    """One node's share of the GPUs must be on this machine."""
    if cluster.gpu.kind == "cpu":
        return
    machine, share = this_machine(), cluster.node.num_gpus
    here = "no GPU" if machine.gpu.kind == "cpu" else machine.name
    if machine.gpu.kind == "cpu" or machine.gpu.name != cluster.gpu.name or machine.num_gpus < share:
        each = f", {share} on each machine" if cluster.num_nodes > 1 else ""
        raise HardwareError(
            f"hardware is {cluster.name}{each}, and this machine has {here}; plan for other machines, but train on "
            "this one: leave hardware out, or name what is here (cpu:N for N processes)"
        )


def _started_cluster(named: str | None, place: Place) -> Cluster:
    if named is not None:
        cluster = parse_hardware(named)
        if cluster.num_gpus != place.size:
            raise HardwareError(
                f"hardware is {cluster.name}, {cluster.num_gpus} processes, and {place.size} were started; "
                "start as many, or leave hardware out"
            )
        _check_gpus(cluster)
        return cluster
    machine = this_machine()
    if machine.gpu.kind == "cpu":
        return parse_hardware(f"cpu:{place.size}")
    if place.local_size > machine.num_gpus:
        raise HardwareError(
            f"{place.local_size} processes were started on a machine with {machine.name}; start one for each GPU"
        )
    return parse_hardware(f"{place.size // place.local_size} x {place.local_size}x {machine.gpu.name}")


def check_trainable(request: Request, *, cluster: Cluster) -> None:
    """Refuses what this version plans for but does not train, before anything is downloaded or started.

    Raises:
        UnsupportedError: with every reason.
        InputError: the job is for planning only, or the layout is not for this number of processes.
    """
    job = request.job
    if not job.data.path:
        message = "data.path is missing; planning can do without, training needs rows"
        raise InputError(Problem(where=request.where("data"), message=message))
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
    """Finds what the job names and this machine lacks, before anything is prepared; each at its place in the job.

    Raises:
        InputError: files that are not there, packages that are not installed, kernels that the hardware has not.
    """
    lacking = list(_missing_kernels(request, cluster)) or _missing_packages(request, _KERNELS)
    problems = [*_missing_files(request), *_missing_packages(request, _TRACKERS), *lacking]
    if problems:
        raise InputError(problems)


def _missing_files(request: Request) -> Iterator[Problem]:
    data = request.job.data
    both = {"path": data.path, "eval_path": data.eval_path}
    named = [(key, index, source.path) for key, sources in both.items() for index, source in enumerate(sources)]
    for key, index, path in named:
        is_file = path.startswith(("/", ".", "~")) or path.lower().endswith(_FILE_ENDINGS)
        if is_file and not Path(path).expanduser().exists():
            yield Problem(
                where=request.where("data", key, index), message=f"data.{key} names {path}, which does not exist"
            )
    if data.chat_template is not None and not Path(data.chat_template).is_file():
        message = f"data.chat_template names {data.chat_template}, which is no file; expected a Jinja template"
        yield Problem(where=request.where("data", "chat_template"), message=message)


def _missing_kernels(request: Request, cluster: Cluster) -> Iterator[Problem]:
    if message := stated_attention_refusal(request.job, cluster.gpu):
        yield Problem(where=request.where("train", "attn_implementation"), message=message)


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
        layout = _layout(request.job.stated_layout, cluster=cluster)
    except ValueError as error:
        raise InputError(Problem(where=request.where("layout"), message=str(error))) from None
    if layout.world_size != processes:
        message = f"layout needs {layout.world_size} processes, and the hardware gives {processes}; make them equal"
        raise InputError(Problem(where=request.where("layout"), message=message))
    return stated_execution(request.job, layout)


def stated_execution(job: Job, layout: Layout) -> Execution:
    """What a job states of how a step is executed on a layout, with the plainest choice where it leaves one open."""
    train = job.train
    return Execution(
        layout=layout,
        micro_batch_size=1,
        gradient_accumulation_steps=1,
        offload="none" if train.offload == "auto" else train.offload,
        precision="mixed" if train.precision == "auto" else train.precision,
        optimizer="adamw" if train.optimizer == "auto" else train.optimizer,
        gradient_checkpointing="none" if train.gradient_checkpointing == "auto" else train.gradient_checkpointing,
        compile=train.compile,
    )


def _layout(stated: LayoutSpec | str | None, *, cluster: Cluster) -> Layout:
    if isinstance(stated, LayoutSpec):
        return stated.to_layout()
    if stated is None:
        return Layout(dp_replicate=cluster.num_gpus)
    return Layout.from_strategy(stated, world_size=cluster.num_gpus, gpus_per_node=cluster.node.num_gpus)


def place_of(request: Request, reason: str, *, otherwise: str = "layout") -> str:
    """The key a reason is about: the one it begins with.

    Args:
        request: whose.
        reason: why something is not trained.
        otherwise: the key where it begins with none.
    """
    name = reason.split(maxsplit=1)[0]
    keys = {
        "method": ("method",),
        "precision": ("train", name),
        "optimizer": ("train", name),
        "offload": ("train", name),
        "compile": ("train", name),
        "packing": ("data", name),
        "max_length": ("data", name),
    }
    if reason.endswith(NO_EXPERTS):
        return request.where("model")
    return request.where(*keys.get(name, (otherwise,)))
