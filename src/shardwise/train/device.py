"""A rank's device: whether torch has what the plan is for, with the memory it counts on; and out of
memory as a sentence: the planned, the measured, which part is larger, what to set next."""

import os
import re
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shardwise.catalog.devices import available_memory, holders_of, system_memory
from shardwise.errors import HardwareError, said
from shardwise.parallel.mesh import own_device
from shardwise.spec.cluster import Cluster
from shardwise.spec.job.file import read_job
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import Candidate, MemoryForecast, RankMemory
from shardwise.spec.run import RunDirectory
from shardwise.spec.support.trained import execution_refusals
from shardwise.train.measuring.memory import Held
from shardwise.units import GIB, KIB, MIB, TIB, format_gib

#: The share of a plan's memory that torch must see: its figure and the driver's differ a little.
_ENOUGH_MEMORY = 0.98
#: How long held memory is waited for: a driver takes seconds to free that of killed ranks.
PATIENCE_SECONDS = 10.0

_HOW_TO_INSTALL = "see https://pytorch.org/get-started/locally/"


def check_device(planned: Cluster) -> None:
    """Compares the devices that torch sees with the plan's, before ranks meet. Raises
    HardwareError: torch sees no GPU and the plan is for GPUs, or one where it is for processors."""
    sees_gpu = torch.cuda.is_available()
    if sees_gpu and planned.gpu.kind == "cpu":
        raise HardwareError(
            f"the plan is for {planned.name}, processors, and torch sees a GPU, on which it would train; hide it by "
            "CUDA_VISIBLE_DEVICES= (set, and empty), or plan again for the GPU"
        )
    if planned.gpu.kind == "cuda" and not sees_gpu:
        raise HardwareError(
            f"the plan is for {planned.name}, and torch sees no GPU here: {_why()}; `shardwise doctor` shows what is "
            "here, and hardware: cpu:N trains on N processes without GPUs"
        )


def check_memory(planned: Cluster, forecast: MemoryForecast, device: torch.device) -> None:
    """Raises HardwareError: a rank's GPU has less memory, or less free, than the plan counts on."""
    if device.type != "cuda":
        return
    torch.cuda.set_device(device)
    capacity, needed = forecast.capacity_bytes, forecast.peak_bytes
    if needed > capacity:  # it is tried, or was, whatever is forecast
        needed = round(_ENOUGH_MEMORY * capacity)
    name = f"{torch.cuda.get_device_properties(device).name} (cuda:{device.index})"
    deadline, (free, total) = time.monotonic() + PATIENCE_SECONDS, torch.cuda.mem_get_info(device)
    if total < _ENOUGH_MEMORY * capacity:
        counts = f"has {format_gib(total)}, and the plan counts on {format_gib(capacity)}"
        raise HardwareError(f"{name} {counts}; plan again on this machine, with hardware left out")
    while (left := free + planned.gpu.context_bytes) < needed:
        if time.monotonic() >= deadline:
            raise HardwareError(
                f"{name} has {format_gib(left)} of {format_gib(total)} free, and the plan needs {format_gib(needed)} "
                "at its peak; free the memory, or start again: what is free then is planned for; held by "
                f"{holders(device)}"
            )
        time.sleep(0.2)
        free, _ = torch.cuda.mem_get_info(device)


def holders(device: torch.device) -> str:
    """Which other processes hold memory of a rank's GPU."""
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return holders_of(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}", without=os.getpid())


def _why() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is the build for processors. Install the CUDA build ({_HOW_TO_INSTALL})"
    try:
        torch.cuda.init()
        reason = "it does not say why"
    except (RuntimeError, AssertionError) as error:
        reason = said(error).rstrip(".")
    return (
        f"torch {torch.__version__} says: {reason}. Install a build for this machine's driver, or a newer driver "
        f"({_HOW_TO_INSTALL}); look at CUDA_VISIBLE_DEVICES"
    )


#: How a RuntimeError without its own class says it: the CPU's allocator, a CUDA library, NCCL.
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")
#: How much was requested: `Tried to allocate 2.00 GiB`, `you tried to allocate 8 bytes`.
_ASKED = re.compile(r"tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}

#: A part is larger than planned from here on, as a share of the planned peak: less is rounding.
_NOTICEABLE = 0.02

#: What a process takes of a GPU outside PyTorch's allocator, by the driver's count: context,
#: kernels and workspaces of libraries. 0.8 GiB on an H100 (torch 2.11); less than this is not held
#: by others.
_OUTSIDE_BYTES = 900 * MIB


class OutOfMemoryError(RuntimeError):
    """A rank's device had no room; the message names planned and measured figures and a remedy."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Memory of a rank's device where it was out of memory. `used`: the most at one instant, on a
    GPU allocated, else resident; `reserved`: by PyTorch, None of a CPU process; `asked`: for then,
    None if not said; `held`: None where the model was not built yet."""

    used: int
    reserved: int | None
    asked: int | None
    total: int
    by_others: int
    who: str = ""
    held: Held | None = None

    @property
    def on_gpu(self) -> bool:
        """Of a GPU, not of a process."""
        return self.reserved is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is that of an allocator, of the GPU or of the host."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in _WORDS)
    )


def explained(
    error: BaseException, *, run: RunDirectory, rank: int, holding: Callable[[], Held] | None
) -> BaseException:
    """An error as it is reported: out of memory as a sentence, any other as it is. `holding`
    measures weights and optimizer states; None before the model was built."""
    if not is_out_of_memory(error):
        return error
    try:
        job, best = read_job(run.resolved), read_plan(run.plan).best
        if best is None:
            return error
        text = sentence(job, best, rank=rank, measured=_measure(error, holding=holding))
    except Exception:  # noqa: BLE001  # whatever stands in the way of an explanation, the error itself is reported
        return error
    return OutOfMemoryError(text).with_traceback(error.__traceback__)


def _measure(error: BaseException, *, holding: Callable[[], Held] | None) -> Measured:
    match, device = _ASKED.search(str(error)), own_device()
    asked = int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
    held = None if holding is None else holding()
    if device.type == "cpu":
        used, reserved, total, who = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB, None, system_memory(), ""
        mine = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
        others = max(0, total - available_memory() - mine)
    else:
        free, total = torch.cuda.mem_get_info(device)
        used, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        others = max(0, total - free - torch.cuda.memory_reserved(device) - _OUTSIDE_BYTES)
        who = holders(device) if others else ""
    return Measured(used=used, reserved=reserved, asked=asked, total=total, by_others=others, who=who, held=held)


def sentence(job: Job, planned: Candidate, *, rank: int, measured: Measured) -> str:
    """What a rank out of memory reports."""
    memory = planned.memory
    mine = next((one for one in memory.ranks if rank in one.ranks), memory.ranks[0])
    kind, whole, used = "process", "a machine", f"{format_gib(measured.used)} resident"
    if measured.reserved is not None:
        kind, whole = "GPU", "a GPU"
        used = f"{format_gib(measured.used)} allocated and {format_gib(measured.reserved)} reserved"
    asked = "" if measured.asked is None else f" when {format_gib(measured.asked)} more were asked for"
    who = f" ({measured.who})" if measured.who else ""
    return (
        f"out of memory: planned {format_gib(mine.peak_bytes)} at the peak ({memory.peak_instant}) of "
        f"{format_gib(memory.capacity_bytes)} for each {kind}, measured {used}{asked}, on {whole} with "
        f"{format_gib(measured.total)} of which others hold {format_gib(measured.by_others)}{who}; "
        f"{_larger(mine, measured, capacity=memory.capacity_bytes)}; {_next(job, planned.execution, measured)}"
    )


def _larger(planned: RankMemory, measured: Measured, *, capacity: int) -> str:
    held, found = measured.held, list[tuple[int, str]]()
    if measured.on_gpu:  # what is left of the GPU beside others is less than the plan counted on
        lacking = capacity - (measured.total - measured.by_others)
        more = f"others hold {format_gib(lacking)} more than when it was planned"
        found.append((lacking, f"{more}, and the same command plans around them"))
    if held is not None:
        weights, optimizer = planned.parts.get("weights", 0), planned.parts.get("optimizer", 0)
        parts = [("weights", held.weights, weights), ("optimizer states", held.optimizer, optimizer)]
        if measured.on_gpu:  # a process holds libraries too, of which the plan knows nothing
            rest = planned.peak_bytes - weights - optimizer - planned.parts.get("context", 0)
            passing = measured.used + (measured.asked or 0) - held.weights - held.optimizer
            parts.append(("gradients, activations and what passes", passing, rest))
        for name, now, then in parts:
            found.append((now - then, f"larger than planned: {name}, {format_gib(now)} for {format_gib(then)}"))
    excess, text = max(found, default=(0, ""))
    if excess > _NOTICEABLE * planned.peak_bytes:
        return text
    return "no part that can be measured is larger than planned" if held is not None else "the model was not built yet"


def _next(job: Job, execution: Execution, measured: Measured) -> str:
    """The first of the settings that need less memory and are trained, as a line to paste; with
    what was chosen and saves memory already, which a new plan might take back."""
    ways = (replace(execution, **change) for change in _smaller(execution, on_gpu=measured.on_gpu))
    smaller = next((one for one in ways if not execution_refusals(job, one)), None)
    if smaller is None:
        fewer = "more GPUs, or larger ones" if measured.on_gpu else "fewer processes, or a machine with more memory"
        return f"next: {fewer}"
    layout = smaller.layout
    chosen = {
        "train.micro_batch_size": (smaller.micro_batch_size, True),
        "train.gradient_checkpointing": (smaller.gradient_checkpointing, smaller.gradient_checkpointing != "none"),
        "train.loss": (smaller.loss, smaller.loss != execution.loss),
        "train.offload": (smaller.offload, smaller.offload != "none"),
        "layout": (layout.strategy, layout != execution.layout or (job.layout == "auto" and layout.world_size > 1)),
    }
    return "next: " + " ".join(f"--set {key}={value}" for key, (value, is_said) in chosen.items() if is_said)


def _smaller(execution: Execution, *, on_gpu: bool) -> list[dict[str, Any]]:
    """Changes of an execution by which it needs less memory; the cheapest in time first."""
    layout, micro = execution.layout, execution.micro_batch_size
    replicates = layout.world_size > 1 and layout.weight_shards == layout.pp == layout.tp == 1
    ways: list[tuple[bool, dict[str, Any]]] = [
        (micro > 1, {"micro_batch_size": micro // 2}),
        (execution.recompute != "full" and not execution.saves_on_host, {"gradient_checkpointing": "full"}),
        (execution.loss == "full", {"loss": "chunked"}),
        (on_gpu and execution.gradient_checkpointing != "offloaded", {"gradient_checkpointing": "offloaded"}),
        (on_gpu and execution.offload == "none", {"offload": "optimizer"}),
        (on_gpu and not execution.parameters_on_host, {"offload": "parameters"}),
        (replicates, {"layout": Layout(dp_shard=layout.world_size)}),
    ]
    return [change for helps, change in ways if helps]
