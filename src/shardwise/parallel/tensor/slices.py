"""Sliced parameters: stored as DTensors, and plain local tensors inside the forward of their module.

So a module's own code runs unchanged on this rank's slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor

from shardwise.parallel.buckets import sum_over


class Slicer:
    """Replaces parameters on the meta device by their slices over one mesh axis. A parameter that several modules hold
    (a tied embedding) is sliced once."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self._sliced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        self._uncounted: dict[nn.Module, frozenset[str]] = {}

    def slice(
        self,
        module: nn.Module,
        placements: Mapping[str, Placement],
        *,
        once: Iterable[str] = (),
        reads: Iterable[nn.Module] = (),
    ) -> None:
        """Slices a module's own parameters and makes its forward use the local slices. `once` are replicated parameters
        that only the first rank adds, because outputs are summed over ranks. `reads` are modules, sliced before, whose
        parameters this forward reads."""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = self._slice(parameter, placements[name])
        self._uncounted[module] = frozenset(once) if self.mesh.get_local_rank() else frozenset[str]()
        held = [(of, self._uncounted[of]) for of in (module, *reads)]
        module.forward = partial(_forward_on_slices, held, module.forward)

    def _slice(self, parameter: nn.Parameter, placement: Placement) -> nn.Parameter:
        # The original is kept, so that its id is not reused.
        if id(parameter) not in self._sliced:
            dtensor = distribute_tensor(parameter.detach(), self.mesh, [placement], src_data_rank=None)
            self._sliced[id(parameter)] = parameter, nn.Parameter(dtensor, requires_grad=parameter.requires_grad)
        return self._sliced[id(parameter)][1]


def _forward_on_slices(
    held: Iterable[tuple[nn.Module, frozenset[str]]], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with ExitStack() as stack:
        for module, uncounted in held:
            stack.enter_context(_local_parameters(module, uncounted))
        return forward(*args, **kwargs)


@contextmanager
def _local_parameters(module: nn.Module, uncounted: frozenset[str]) -> Iterator[None]:
    held = dict(module._parameters)
    for name, parameter in held.items():
        if isinstance(parameter, DTensor):
            local = _local(parameter)
            module._parameters[name] = cast(nn.Parameter, local * 0 if name in uncounted else local)
    try:
        yield
    finally:
        module._parameters.update(held)


def _local(parameter: DTensor) -> torch.Tensor:
    """This rank's slice. The gradient of a replicated parameter is a partial sum: each rank sees part of the work."""
    whole = parameter.placements == (Replicate(),)
    return parameter.to_local(grad_placements=[Partial()] if whole else None)


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sums the gradients of replicated parameters over their ranks, once after the last backward of a step."""
    waiting: dict[DeviceMesh, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
            waiting[gradient.device_mesh].append(parameter)
    for mesh, summed in waiting.items():
        # Cloned, because autograd may share memory between gradients.
        summands = [cast(DTensor, parameter.grad).to_local().clone() for parameter in summed]
        sum_over(mesh.get_group(), summands)
        for parameter, its_sum in zip(summed, summands, strict=True):
            parameter.grad = DTensor.from_local(its_sum, mesh, [Replicate()], run_check=False)
