"""Parameters as slices: DTensors to everyone who stores them, plain local tensors to the module that computes.

So a module's own code runs unchanged, at full speed, on what this rank holds.
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
    """Replaces parameters on the meta device by their slices over one mesh axis.

    A parameter that several modules hold (a tied embedding) is sliced once, and they hold the slice together.
    """

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
        """Slices a module's own parameters and makes its forward compute on the slices.

        Args:
            placements: parameter name -> which slice a rank holds.
            once: names of whole parameters that count on the first rank only, because the ranks' results are summed.
            reads: modules, sliced before, whose parameters its forward reads by itself.
        """
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = self._slice(parameter, placements[name])
        self._uncounted[module] = frozenset(once) if self.mesh.get_local_rank() else frozenset[str]()
        held = [(of, self._uncounted[of]) for of in (module, *reads)]
        module.forward = partial(_forward_on_slices, held, module.forward)

    def _slice(self, parameter: nn.Parameter, placement: Placement) -> nn.Parameter:
        # The whole is kept beside its slice, so that its id is not given to another.
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
    """This rank's slice; a whole parameter's gradient is one summand, because each rank sees a part of the work."""
    whole = parameter.placements == (Replicate(),)
    return parameter.to_local(grad_placements=[Partial()] if whole else None)


def settle_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sums the gradients of whole parameters over the ranks that hold them; those of slices are complete.

    To be called once, after the last backward of a step: sums of sums are sums.
    """
    waiting: dict[DeviceMesh, list[nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(placement.is_partial() for placement in gradient.placements):
            waiting[gradient.device_mesh].append(parameter)
    for mesh, summed in waiting.items():
        # Copies: what autograd left may be another gradient's memory too.
        summands = [cast(DTensor, parameter.grad).to_local().clone() for parameter in summed]
        sum_over(mesh.get_group(), summands)
        for parameter, its_sum in zip(summed, summands, strict=True):
            parameter.grad = DTensor.from_local(its_sum, mesh, [Replicate()], run_check=False)
