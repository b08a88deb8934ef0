"""What is handed out to optimizers: of every trained weight this rank's part, under the same names on every rank."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from shardwise.errors import UnsupportedError
from shardwise.parallel.optimizer.stepped import Detour, Named
from shardwise.parallel.ownership import Ownership, sharded_dims
from shardwise.train.guards.checks import gather
from shardwise.train.guards.replicas import part_hashes
from shardwise.train.own_loop.elementwise import refuse_others
from shardwise.train.own_loop.gradients import Gradient, plain


class Handed:
    """Parameters of a torch optimizer, watched at each of its steps. Of a weight that lies on another pipeline stage, a
    part without elements: so every rank has all names in one order, and norms over all of them are whole. `stepped`:
    what optimizers step in place of the model's parameters; `given`: parameters of the model that was given."""

    def __init__(self, stepped: Detour, *, ownership: Ownership, given: Iterable[nn.Parameter]) -> None:
        self._stepped, self._world = stepped, ownership.world
        placed = {name: whole for (name, _), whole in zip(stepped.named, stepped.placed, strict=True)}
        mine = {name: (tuple(whole.shape[1:]), whole.dtype) for name, whole in placed.items()}
        every = {name: kind for rank in gather(self._world, mine) for name, kind in rank.items()}
        parts = dict(stepped.named)
        for name, (rest, dtype) in every.items():
            parts.setdefault(name, nn.Parameter(torch.empty(0, *rest, dtype=dtype, device=self._world.device)))
        self.named: Named = [(name, parts[name]) for name in every]
        self._elsewhere = [parts[name] for name in every if name not in placed]
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
        self._answer_for_wholes(self._elsewhere)
        if self._before_any is None:
            self._before_any = part_hashes(self._stepped.named)

    def must_be_stepped(self) -> None:
        """Before a step. Raises UnsupportedError: an optimizer was stepped since the first, and nothing has changed."""
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
        """Before any optimizer's step: plain gradients, of what lies on this rank. Raises UnsupportedError."""
        held = self._held(optimizer)
        if not held:
            self._other = type(optimizer).__name__
            if any(self._given.get(id(parameter)) is parameter for parameter in _parameters_of(optimizer)):
                raise UnsupportedError(
                    f"{self._other} holds parameters of the model that parallelize was given, which is empty now, so "
                    "that nothing would be trained; make the optimizer after parallelize, over model.parameters()"
                )
            return
        if self._partial and optimizer not in self._stepped_by:
            refuse_others(optimizer, held=held, cut=self._cut, layout=self._world.layout.strategy)
        self._stepped_by.add(optimizer)
        for parameter in held.values():
            parameter.grad = None if parameter.grad is None else plain(parameter.grad)
        for parameter in self._elsewhere:
            parameter.grad = None

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """After it: exchanges what ranks have stepped, where the optimizer holds it."""
        held = self._held(optimizer)
        if held:
            self._stepped.after_step()
            self._answer_for_wholes(one for one in self._elsewhere if id(one) in held)


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
