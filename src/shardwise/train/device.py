"""Whether torch has what the plan is for: where it sees no GPU, a plan for GPUs is not trained on processors instead"""

from __future__ import annotations

import torch

from shardwise.errors import HardwareError, said
from shardwise.spec.cluster import Cluster

_HOW_TO_INSTALL = "see https://pytorch.org/get-started/locally/"


def check_device(planned: Cluster) -> None:
    """Holds the devices that torch sees on this machine against those of the plan; before ranks meet, for those that
    move tensors by other means than their peers would wait for them.

    Raises:
        HardwareError: the plan is for GPUs and torch sees none, or for processors and it sees one.
    """
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


def _why() -> str:
    """Why torch sees no GPU, and what to do about it."""
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
