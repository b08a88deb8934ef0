"""Which optimizers step parts of weights as they step wholes: found out by trying them."""

from typing import Any

import bitsandbytes
import pytest
import torch
import transformers
from torch import nn

from shardwise.errors import UnsupportedError
from shardwise.train.own_loop.handed import refuse_others
from tests.refusals import said_by


class Own(torch.optim.Optimizer):
    """Of somebody's own; `scale` is what a gradient is divided by."""

    def __init__(self, parameters: Any, scale: Any) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.scale = scale

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        every = [p for group in self.param_groups for p in group["params"]]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / self.scale(p, every))


ELEMENTWISE: dict[str, Any] = {
    **{name: getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad")},
    **{name: getattr(torch.optim, name) for name in ("Adadelta", "RMSprop", "Rprop", "ASGD")},
    "at the start of a warm-up": lambda p: torch.optim.AdamW(p, lr=0.0),
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "rate in a tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
    "states since it was made": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "bitsandbytes in 32 bits": lambda p: bitsandbytes.optim.AdamW(p, lr=1e-3),
    "Lion of bitsandbytes": lambda p: bitsandbytes.optim.Lion32bit(p, lr=1e-3),
    "one's own": lambda p: Own(p, lambda *_: 2.0),
}

#: Of a weight: whole ones may be stepped on several ranks, parts may not.
BY_WEIGHT: dict[str, Any] = {
    "Adafactor": torch.optim.Adafactor,
    "Adafactor of transformers": transformers.Adafactor,
    "Muon": lambda p: torch.optim.Muon([one for one in p if one.ndim == 2]),
    "8 bits": lambda p: bitsandbytes.optim.AdamW8bit(p, lr=1e-3),
    "8 bits, asked by number": lambda p: bitsandbytes.optim.AdamW(p, lr=1e-3, optim_bits=8),
    "LAMB": lambda p: bitsandbytes.optim.LAMB(p, lr=1e-3),
    "one's own": lambda p: Own(p, lambda weight, _: weight.grad.norm()),
}
BY_ALL: dict[str, Any] = {"one's own": lambda p: Own(p, lambda _, every: sum(p.grad.norm() for p in every))}

CASES = [
    pytest.param(make, cut, cut in refused, id=f"{name}, {'parts' if cut else 'wholes'}")
    for table, refused in ((ELEMENTWISE, ()), (BY_WEIGHT, (True,)), (BY_ALL, (True, False)))
    for name, make in table.items()
    for cut in (True, False)
]


def parameters() -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((6, 4), (5,), (3, 2, 2))]


@pytest.mark.parametrize(("make", "cut", "refused"), CASES)
def test_an_optimizer_that_needs_more_than_a_rank_holds_is_refused_and_left_as_it_was(make, cut, refused) -> None:
    held = parameters()
    optimizer = make(held)
    given: Any = {id(one): one for one in held}
    options: Any = {"held": given, "cut": cut, "layout": "fsdp"}
    if refused:
        said = said_by(UnsupportedError, refuse_others, optimizer, **options)
        assert said.startswith(f"{type(optimizer).__name__} does not step element by element")
        assert "train.optimizer adafactor or adamw_8bit" in said
    else:
        refuse_others(optimizer, **options)
    assert all(torch.equal(one, was) for one, was in zip(held, parameters(), strict=True))
    assert not any(state.get("step") for state in optimizer.state.values())


def test_an_optimizer_that_cannot_be_tried_is_refused_with_the_reason() -> None:
    held = parameters()
    given: Any = {id(one): one for one in held}
    said = said_by(UnsupportedError, refuse_others, torch.optim.LBFGS(held), held=given, cut=True, layout="fsdp")
    assert said.startswith("LBFGS could not be tried (TypeError: LBFGS.step() missing 1 required positional argument")
    idle = Own(held, lambda *_: float("inf"))
    said = said_by(UnsupportedError, refuse_others, idle, held=given, cut=True, layout="fsdp")
    assert "it changed nothing in 3 steps" in said
