"""Whether an optimizer steps parts of a weight as it steps the whole: tried out, because a class does not say so."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from shardwise.errors import UnsupportedError

#: Of weights that optimizers are tried on, by number of dims: no block of 8-bit states ends where a part does.
_SHAPES = {1: (6001,), 2: (96, 65), 3: (96, 13, 5)}
_STEPS, _RATE, _TOLERANCE = 3, 0.1, 1e-5

_INSTEAD = (
    "use SGD, Adam, AdamW or another elementwise optimizer, a layout of which every rank holds all weights (ddp), or "
    "`shardwise train` with train.optimizer adafactor or adamw_8bit"
)


def refuse_others(
    optimizer: torch.optim.Optimizer, *, held: Mapping[int, nn.Parameter], cut: bool, layout: str
) -> None:
    """Raises UnsupportedError: what the optimizer does to an element depends on elements that other ranks hold. `held`:
    the parameters of its groups that are parts, by id; `cut`: weights are cut; if not, ranks hold some whole ones."""
    if any(isinstance(inner, torch.optim.Optimizer) for inner in vars(optimizer).values()):
        return  # stepped in turn, and tried then
    for group in optimizer.param_groups:
        for dims in {min(p.ndim, 3) for p in group["params"] if id(p) in held}:
            _refuse(optimizer, group, dims=dims, cut=cut, layout=layout)


def _refuse(optimizer: torch.optim.Optimizer, group: dict[str, Any], *, dims: int, cut: bool, layout: str) -> None:
    """Steps two weights, and beside them a part of the first alone, by the same gradients."""
    device, kind = group["params"][0].device, type(optimizer).__name__
    draw = torch.Generator().manual_seed(0)
    # Rows of very different size: what is taken over a part differs from what is taken over the whole.
    rows = torch.logspace(-2, 2, _SHAPES[dims][0]).view(-1, *(1,) * (dims - 1))
    weights = [(torch.randn(_SHAPES[dims], generator=draw) * rows).to(device) for _ in range(2)]
    gradients = [(torch.randn(_STEPS, *_SHAPES[dims], generator=draw) * rows).to(device) for _ in range(2)]
    share = _SHAPES[dims][0] * 5 // 8 if cut else _SHAPES[dims][0]
    try:
        whole = _stepped(optimizer, group, weights, gradients)
        alone = _stepped(optimizer, group, [weights[0][:share]], [gradients[0][:, :share]])
    except Exception as error:
        raise UnsupportedError(
            f"{kind} could not be tried ({type(error).__name__}: {error}), so that nobody knows whether it steps "
            f"element by element, as it must where ranks hold parts of the weights ({layout}); {_INSTEAD}"
        ) from error
    moved = whole - weights[0]
    if not torch.allclose(alone, whole[:share], rtol=_TOLERANCE, atol=_TOLERANCE * moved.abs().max().item() * 1e-2):
        raise UnsupportedError(
            f"{kind} does not step element by element: tried on random weights, it steps a part of them alone "
            f"otherwise than beside the rest, which other ranks hold here ({layout}); {_INSTEAD}"
        )


@torch.no_grad()
def _stepped(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], weights: list[torch.Tensor], gradients: list[torch.Tensor]
) -> torch.Tensor:
    """The first of some weights after a few steps of an optimizer like this one: its class and settings."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    alike: Any = object.__new__(type(optimizer))  # a copy would leave out what an optimizer does not pickle
    vars(alike).update(vars(optimizer))
    alike.state = defaultdict(dict)
    # Some make states when they are made: those of a parameter of this group, as they would be before a step.
    for parameter in parameters:
        for key, value in optimizer.state.get(group["params"][0], {}).items():
            of_elements = isinstance(value, torch.Tensor) and value.ndim
            alike.state[parameter][key] = torch.zeros_like(parameter) if of_elements else copy.deepcopy(value)
    rate = {} if group.get("lr") is None else {"lr": _RATE}  # a schedule may begin at 0
    alike.param_groups = [{**group, "params": parameters, **rate}]
    alike._optimizer_step_pre_hooks, alike._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    step = inspect.unwrap(type(optimizer).step)
    for index in range(_STEPS):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient[index].clone()
        step(alike)
    if torch.equal(parameters[0], weights[0]):
        raise RuntimeError(f"it changed nothing in {_STEPS} steps")
    return parameters[0].detach()
