"""Optimizer, schedule, clipping, and updates that are left out."""

import math
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from transformers.optimization import Adafactor

from shardwise.spec.job.keys import TrainSpec
from shardwise.spec.layout.execution import OptimizerName
from shardwise.train.optim import Update, build_optimizer, build_schedule, gradient_norm

CPU = torch.device("cpu")


def parameters() -> list[tuple[str, nn.Parameter]]:
    sizes = {"frozen": (3, 3), "weight": (2, 2), "norm.weight": (2,), "down_proj_bias": (4, 2), "q_norm.weight": (4, 2)}
    return [(name, nn.Parameter(torch.ones(size), requires_grad=name != "frozen")) for name, size in sizes.items()]


def rates(total: int, **settings: Any) -> list[float]:
    train = TrainSpec(learning_rate=1.0, **settings)
    optimizer = build_optimizer(parameters(), train=train, name="sgd")
    schedule = build_schedule(optimizer, train=train, total_steps=total)
    found: list[float] = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("total", "settings", "expected"),
    [
        (1, {"warmup_ratio": 0.1}, "the learning rate is 0 in every step, all of which are warm-up: nothing will be"),
        (3, {"warmup_steps": 5}, "all 3 steps are warm-up: the learning rate rises to 40 % of learning_rate"),
        (1, {}, "None"),
        (20, {"warmup_ratio": 0.9}, "None"),
    ],
)
def test_a_warm_up_that_does_not_end_is_said_with_the_rate_it_reaches(total, settings, expected) -> None:
    train = TrainSpec(**settings)
    assert train.warmup(total)[1] == pytest.approx(max(rates(total, **settings)))
    assert str(train.warning_of_warmup(total)).startswith(expected)


@pytest.mark.parametrize(("name", "kind"), [("adamw", "fused"), ("adamw_foreach", "foreach")])
def test_weight_decay_acts_on_matrices_alone_and_adamw_is_fused_unless_lists_are_asked_for(name, kind) -> None:
    groups = build_optimizer(parameters(), train=TrainSpec(weight_decay=0.1), name=name).param_groups
    decays = [(group["weight_decay"], [one.ndim for one in group["params"]]) for group in groups]
    assert decays == [(0.1, [2]), (0.0, [1, 2, 2])], "never on norms, biases or frozen weights"
    assert [one for one in ("fused", "foreach") if groups[0][one]] == [kind]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr_scheduler_type": "linear", "warmup_steps": 2}, [0, 0.5, 1, 0.75, 0.5, 0.25]),
        ({"lr_scheduler_type": "cosine"}, [0.5 + 0.5 * math.cos(math.pi * step / 6) for step in range(6)]),
        ({"lr_scheduler_type": "constant"}, [1.0] * 6),
        ({"lr_scheduler_type": "constant", "warmup_ratio": 0.3}, [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_schedules_warm_up_where_asked(settings, expected) -> None:
    assert rates(6, **settings) == pytest.approx(expected)


#: An optimizer -> what of it shows the gradient it stepped by; plain SGD has weights alone.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("exp_avg", {"adam_beta1": 0.0}),
    "adamw_foreach": ("exp_avg", {"adam_beta1": 0.0}),
    "sgd": ("momentum_buffer", {"optimizer": "sgd", "momentum": 0.5}),
}


Figures = tuple[float, list[float]]
"""A step's loss, and the gradient of two elements."""


def _updates(name: str, *steps: Figures, limit=1.0) -> tuple[nn.Parameter, torch.optim.Optimizer, list[Update]]:
    parameter, updates = nn.Parameter(torch.ones(2, 1)), list[Update]()
    optimizer = build_optimizer([("weight", parameter)], train=TrainSpec(**KINDS[name][1]), name=name)
    for loss, gradient in steps:
        parameter.grad = torch.tensor(gradient).unsqueeze(1)
        norm = gradient_norm([parameter], device=CPU)
        update = Update(loss=torch.tensor(loss, dtype=torch.float64), norm=norm, max_norm=limit)
        updates.append(update)

        def check(update: Update = update) -> bool:
            if not all(map(math.isfinite, update.figures)):
                raise FloatingPointError
            return True

        with suppress(FloatingPointError):
            update.launch(optimizer, [parameter], check=check)
    return parameter, optimizer, updates


@pytest.mark.parametrize(("limit", "left"), [(1.0, 1.0), (10.0, 5.0), (0.0, 5.0)])
@pytest.mark.parametrize("name", KINDS)
def test_a_step_is_by_gradients_clipped_to_the_limit_and_reports_the_norm_before(name, limit, left) -> None:
    parameter, optimizer, (update,) = _updates(name, (1.5, [3.0, 4.0]), limit=limit)
    assert ("figures" in vars(update)) is (name != "adamw"), "the host has waited"
    assert update.figures == (1.5, pytest.approx(5.0))
    assert optimizer.state[parameter][KINDS[name][0]].norm().item() == pytest.approx(left, rel=1e-5)
    assert parameter.grad is None


@pytest.mark.parametrize("bad", [(1.0, [math.inf, 1.0]), (1.0, [math.nan, 1.0]), (math.nan, [3.0, 4.0])], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_a_step_whose_loss_or_norm_is_not_finite_changes_neither_weights_nor_states(name: str, bad: Figures) -> None:
    good: list[Figures] = [(1.0, [3.0, 4.0]), (2.0, [0.3, 0.1])]
    parameter, optimizer, updates = _updates(name, good[0], bad, good[1])
    assert [all(map(math.isfinite, update.figures)) for update in updates] == [True, False, True]
    expected, without, _ = _updates(name, *good)
    assert torch.equal(parameter, expected)
    assert optimizer.state[parameter].keys() == without.state[expected].keys()
    for key, state in without.state[expected].items():
        assert torch.equal(optimizer.state[parameter][key], state), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_a_large_gradient_is_that_of_its_shards(dtype) -> None:
    """torch's own on a CPU is 7e-4 too small for as many elements, and 3e-4 for a quarter."""
    drawn = torch.randn(4096, 4096, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = drawn.double().square().sum().sqrt().item()

    def norm(*gradients: torch.Tensor) -> float:
        parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        return gradient_norm(parameters, device=CPU).item()

    assert norm(drawn) == pytest.approx(exact, rel=1e-7)
    assert norm(*drawn.split(1000)) == pytest.approx(exact, rel=1e-7)
    assert norm(drawn.t()[:, 1:], drawn.t()[:, :1]) == pytest.approx(exact, rel=1e-7)


def _stepped(name: OptimizerName, *, start: float, gradient: float, steps: int, **settings: Any) -> float:
    parameter = nn.Parameter(torch.full((4, 4), start))
    optimizer = build_optimizer([("weight", parameter)], train=TrainSpec(optimizer=name, **settings), name=name)
    for _ in range(steps):
        parameter.grad = torch.full((4, 4), gradient)
        optimizer.step()
    return parameter[0, 0].item()


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [("sgd", {"momentum": 0.9}, 0.95 - 0.1 * 0.5 * (0.9 + 0.95)), ("adamw", {}, 0.95**2), ("adafactor", {}, 0.95**2)],
)
def test_weight_decay_is_coupled_with_sgd_alone_as_its_key_says(name, settings, expected) -> None:
    train = {"learning_rate": 0.1, "weight_decay": 0.5, **settings}
    assert _stepped(name, start=1.0, gradient=0.0, steps=2, **train) == pytest.approx(expected)


@pytest.mark.parametrize(("start", "relative"), [(0.1, 0.1), (0.0, 1e-3)])
def test_a_step_of_adafactor_is_a_share_of_the_weights_where_that_of_trainer_is_the_rate(start, relative) -> None:
    theirs = nn.Parameter(torch.full((4, 4), start))
    theirs.grad = torch.ones(4, 4)
    Adafactor([theirs], lr=0.01, scale_parameter=False, relative_step=False).step()
    assert start - theirs[0, 0].item() == pytest.approx(0.01)
    ours = _stepped("adafactor", start=start, gradient=1.0, steps=1, learning_rate=0.01)
    assert start - ours == pytest.approx(0.01 * relative)
