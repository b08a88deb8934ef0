"""Checks on which device weights, optimizer parameters and states lie, against `train.offload`."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from shardwise.parallel.optimizer.stepped import Named, Stepped
from shardwise.parallel.ownership import local_part
from shardwise.spec.layout.execution import Execution
from shardwise.train.guards.checks import GuardError, after_first_step

_HOST = torch.device("cpu")


def read_back_places(
    optimizer: torch.optim.Optimizer, parameters: Named, stepped: Stepped, *, execution: Execution, device: torch.device
) -> None:
    """Checks devices now, and those of optimizer states after the first step; GuardError names one."""
    weights, states = (
        _HOST if on_host else device for on_host in (execution.parameters_on_host, execution.optimizer_on_host)
    )
    asked = f"train.offload is {execution.offload}"
    _check("the weight", parameters, place=weights, asked=asked)
    _check("what the optimizer steps of", stepped.named, place=states, asked=asked)
    if execution.optimizer_on_host and not execution.parameters_on_host:
        _check_copies(parameters, stepped.named, asked=asked)

    def check() -> None:
        # A count of steps lies where the optimizer's kind wants it.
        own = [(f"{key} of {name}", state) for name, key, state, _ in stepped.states(optimizer) if state.ndim]
        _check("the optimizer's", own, place=states, asked=asked)

    after_first_step(optimizer, check)


def _check(what: str, named: Iterable[tuple[str, torch.Tensor]], *, place: torch.device, asked: str) -> None:
    for name, tensor in named:
        found = local_part(tensor).device.type
        if found != place.type:
            raise GuardError(
                f"{what} {name} lies in the memory of {found}; {asked}, which puts it into that of {place.type}. What "
                "was asked is not what runs"
            )


def _check_copies(parameters: Named, stepped: Named, *, asked: str) -> None:
    """What is stepped on the host must be a copy, and no view of the weight."""
    weights = {local_part(p).untyped_storage().data_ptr() for _, p in parameters if local_part(p).numel()}
    for name, parameter in stepped:
        local = local_part(parameter)
        if local.numel() and local.untyped_storage().data_ptr() in weights:
            raise GuardError(
                f"the optimizer steps {name} itself and no copy of it; {asked}, which steps copies in the host's "
                "memory. What was asked is not what runs"
            )
