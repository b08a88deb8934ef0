"""Sliced parameters: stored as DTensors, and plain local tensors inside their module's forward.

So a module's own code runs unchanged on this rank's slice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor


class Slicer:
    """Replaces parameters on the meta device by slices over one axis, a shared one once."""

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
        """Slices a module's own parameters; its forward uses the slices. `once`: replicated ones
        added by the first rank alone, as outputs are summed; `reads`: modules sliced before."""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = self._slice(parameter, placements[name])
        self._uncounted[module] = frozenset(once) if self.mesh.get_local_rank() else frozenset[str]()
        held = [(of, self._uncounted[of]) for of in (module, *reads)]
        module.forward = partial(_forward_on_slices, held, module.forward)

    def open(self, module: nn.Module) -> None:
        """Makes a module's forward use the local slices of all inside it, which it may read."""
        held = [(one, self._uncounted[one]) for one in module.modules() if one in self._uncounted]
        module.forward = partial(_forward_on_slices, held, module.forward)

    def _slice(self, parameter: nn.Parameter, placement: Placement) -> nn.Parameter:
        # The original is kept, so that its id is not reused.
        if id(parameter) not in self._sliced:
            dtensor = distribute_tensor(parameter.detach(), self.mesh, [placement], src_data_rank=None)
            self._sliced[id(parameter)] = parameter, nn.Parameter(dtensor, requires_grad=parameter.requires_grad)
        return self._sliced[id(parameter)][1]


def _forward_on_slices(
    held: Sequence[tuple[nn.Module, frozenset[str]]], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    stored = [(module, dict(module._parameters)) for module, _ in held]
    try:
        for module, uncounted in held:
            for name, parameter in dict(module._parameters).items():
                if isinstance(parameter, DTensor):
                    # A replicated parameter's gradient is a partial sum: each rank sees a part.
                    whole = parameter.placements == (Replicate(),)
                    local = parameter.to_local(grad_placements=[Partial()] if whole else None)
                    if not parameter.requires_grad:  # PEFT parametrizes what is a parameter
                        local = nn.Parameter(local, requires_grad=False)
                    module._parameters[name] = cast(nn.Parameter, local * 0 if name in uncounted else local)
        return forward(*args, **kwargs)
    finally:
        for module, parameters in stored:
            module._parameters.update(parameters)


def slice_magnitudes(
    magnitudes: nn.Module, placements: Mapping[str, Placement], *, layer: nn.Module, slicer: Slicer
) -> None:
    """Slices magnitudes of an adapter whose base layer, A and B are sliced. `placements`: sharded
    with matrix rows, or replicated if columns are sliced; PEFT's `layer` divides each by its row's
    norm in `W + scaling * B A` (Liu et al., 2024), which has to be that of the whole row."""
    peft: Any = layer
    reads = [peft.get_base_layer(), *peft.lora_A.values(), *peft.lora_B.values()]
    slicer.slice(magnitudes, placements, reads=reads)
    if not any(isinstance(placed, Shard) for placed in placements.values()):
        vars(magnitudes)["get_weight_norm"] = partial(_norm_of_cut_rows, slicer.mesh.get_group())


@torch.no_grad()
def _norm_of_cut_rows(
    group: dist.ProcessGroup, weight: Tensor, lora_weight: Tensor, scaling: float, **_: Any
) -> Tensor:
    """Norms [rows] of an adapted matrix with columns divided over ranks [rows, local columns]."""
    norms = torch.linalg.vector_norm(weight + scaling * lora_weight, dim=1, dtype=torch.float32)
    squares = norms.square()
    dist.all_reduce(squares, group=group)
    return squares.sqrt().to(weight.dtype)
