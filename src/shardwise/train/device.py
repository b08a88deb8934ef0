"""Whether torch has what the plan is for: GPUs if it is for GPUs, with the memory it counts on"""

import os
import time

import torch

from shardwise.catalog.devices import holders_of
from shardwise.errors import HardwareError, said
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan.forecast import MemoryForecast
from shardwise.units import format_gib

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
