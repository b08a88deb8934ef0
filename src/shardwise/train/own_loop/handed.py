"""What is handed out to optimizers: of every trained weight this rank's part, under the same names
on every rank. And whether an optimizer steps parts as it steps wholes: tried out, because a class
does not say so."""

import copy
import inspect
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardwise.errors import UnsupportedError
from shardwise.parallel.optimizer.stepped import Detour, Named
from shardwise.parallel.ownership import Ownership, sharded_dims
from shardwise.train.guards.checks import gather, part_hashes
from shardwise.train.own_loop.part_gradients import Gradient, plain

#: Weights that optimizers are tried on, by number of dims: no 8-bit block ends where a part does.
_SHAPES = {1: (6001,), 2: (96, 65), 3: (96, 13, 5)}
_STEPS, _RATE, _TOLERANCE = 3, 0.1, 1e-5

_INSTEAD = (
    "use SGD, Adam, AdamW or another elementwise optimizer, a layout of which every rank holds all weights (ddp), or "
    "`shardwise train` with train.optimizer adafactor or adamw_8bit"
)


class Handed:
    """Parameters of a torch optimizer, watched at each of its steps. Of a weight that lies on
    another pipeline stage, a part without elements: so every rank has all names in one order, and
    norms over all of them are whole. `stepped`: what optimizers step in place of the model's
    parameters; `given`: parameters of the model that was given."""

    def __init__(self, stepped: Detour, *, ownership: Ownership, given: Iterable[nn.Parameter]) -> None:
        self._stepped, self._world = stepped, ownership.world
        placed = {name: whole for (name, _), whole in zip(stepped.named, stepped.placed, strict=True)}
        mine = {name: (tuple(whole.shape[1:]), whole.dtype) for name, whole in placed.items()}
        every = {name: kind for rank in gather(self._world, mine) for name, kind in rank.items()}
        parts = dict(stepped.named)
        for name, (rest, dtype) in every.items():
            parts.setdefault(name, nn.Parameter(torch.empty(0, *rest, dtype=dtype, device=self._world.device)))
        self.named: Named = [(name, parts[name]) for name in every]
        self._elsewhere = {id(parts[name]): parts[name] for name in every if name not in placed}
        self._counts = {name: name in placed and ownership.counts(name, placed[name]) for name in every}
        self._cut = any(sharded_dims(whole) for whole in placed.values())
        self._partial = self._cut or self._world.layout.pp > 1
        self._mine = {id(parameter) for _, parameter in self.named}
        self._given = weakref.WeakValueDictionary[int, nn.Parameter]({id(one): one for one in given})
        self._stepped_by: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._other: str | None = None
        self._before_any: dict[Any, int] | None = None
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def arrived(self) -> None:
        """After gradients of a step have arrived: makes them answer for whole weights."""
        self._answer_for_wholes(self._elsewhere.values())
        if self._before_any is None:
            self._before_any = part_hashes(self._stepped.named)

    def must_be_stepped(self) -> None:
        """Raises UnsupportedError: an optimizer was stepped since the first; nothing changed."""
        if self._stepped_by or self._other is None:
            return
        if not any(gather(self._world, part_hashes(self._stepped.named) != self._before_any)):
            raise UnsupportedError(
                f"{self._other} was stepped, but it holds no parameter of the parallelized model, of which none has "
                "changed since the last step; make the optimizer over model.parameters() of what parallelize returned"
            )

    def _answer_for_wholes(self, elsewhere: Iterable[nn.Parameter]) -> None:
        for parameter in elsewhere:
            parameter.grad = torch.zeros_like(parameter)
        for name, parameter in self.named if self._partial else ():
            if parameter.grad is not None:
                parameter.grad = Gradient.of(plain(parameter.grad), counts=self._counts[name])

    def _held(self, optimizer: torch.optim.Optimizer) -> dict[int, nn.Parameter]:
        return {id(parameter): parameter for parameter in _parameters_of(optimizer) if id(parameter) in self._mine}

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before any optimizer's step: plain gradients, of this rank. Raises UnsupportedError."""
        held = self._held(optimizer)
        if not held:
            kind = type(optimizer).__name__
            if any(self._given.get(id(parameter)) is parameter for parameter in _parameters_of(optimizer)):
                raise UnsupportedError(
                    f"{kind} holds parameters of the model that parallelize was given, which is empty now, so that "
                    "nothing would be trained; make the optimizer after parallelize, over model.parameters()"
                )
            self._other = kind
            return
        if self._partial and optimizer not in self._stepped_by:
            refuse_others(optimizer, held=held, cut=self._cut, layout=self._world.layout.strategy)
        self._stepped_by.add(optimizer)
        for key, parameter in held.items():
            if parameter.grad is not None:
                parameter.grad = None if key in self._elsewhere else plain(parameter.grad)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After it: exchanges what ranks have stepped, where the optimizer holds it."""
        held = self._held(optimizer)
        if held:
            self._stepped.after_step()
            self._answer_for_wholes(held[key] for key in self._elsewhere.keys() & held)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def refuse_others(
    optimizer: torch.optim.Optimizer, *, held: Mapping[int, nn.Parameter], cut: bool, layout: str
) -> None:
    """Raises UnsupportedError: what the optimizer does to an element depends on elements that other
    ranks hold. `held`: the parameters of its groups that are parts, by id; `cut`: weights are cut;
    if not, ranks hold some whole ones."""
    if any(isinstance(inner, torch.optim.Optimizer) for inner in vars(optimizer).values()):
        return  # stepped in turn, and tried then
    for group in optimizer.param_groups:
        for dims in {min(p.ndim, 3) for p in group["params"] if id(p) in held}:
            _try_parts(optimizer, group, dims=dims, cut=cut, layout=layout)


def _try_parts(optimizer: torch.optim.Optimizer, group: dict[str, Any], *, dims: int, cut: bool, layout: str) -> None:
    """Steps two weights, and beside them a part of the first alone, by the same gradients."""
    device, kind = group["params"][0].device, type(optimizer).__name__
    draw = torch.Generator().manual_seed(0)
    # Rows of very different size: a value over a part differs from the value over the whole.
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
    """The first of some weights after a few steps of an optimizer of this class and settings."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    alike: Any = object.__new__(type(optimizer))  # a copy would leave out what an optimizer does not pickle
    vars(alike).update(vars(optimizer))
    alike.state = defaultdict(dict)
    # Some make states at construction: those of a parameter of this group, as before a step.
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
