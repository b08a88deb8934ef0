"""Optimizer, learning rate schedule and the norm of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from shardwise.parallel.optimizer.adafactor import Adafactor
from shardwise.parallel.optimizer.adamw_8bit import build_adamw_8bit
from shardwise.parallel.ownership import local_part
from shardwise.spec.job.keys import TrainSpec

#: Row length for norms on a CPU, where torch's norm of 16 million float32 elements is 7e-4 too small; of rows, 2e-8.
_ROW = 512


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    *,
    train: TrainSpec,
    name: str,
    wholes: Mapping[torch.Tensor, torch.Tensor] | None = None,
) -> torch.optim.Optimizer:
    """AdamW (fused, `foreach` or in 8 bits), Adafactor or SGD over the trainable parameters, of which a pipeline stage
    may have none. Weight decay is applied to matrices only: not to norms and biases, as in Transformers, and not to
    DoRA's magnitudes, which Transformers decays.

    Args:
        wholes: for each parameter a tensor with the shape and placement of what it is part of; None: they are whole.
    """
    trainable = [p for p in parameters if p.requires_grad]
    wholes = {p: p for p in trainable} if wholes is None else wholes
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]] or groups[:1]
    if name == "sgd":
        return torch.optim.SGD(groups, lr=train.learning_rate, momentum=train.momentum)
    betas = (train.adam_beta1, train.adam_beta2)
    if name == "adafactor":
        return Adafactor(groups, lr=train.learning_rate, placed=wholes)
    if name == "adamw_8bit":
        options = {"lr": train.learning_rate, "betas": betas, "eps": train.adam_epsilon}
        return build_adamw_8bit(groups, placed=wholes, **options)
    walk = {"foreach": True} if name == "adamw_foreach" else {"fused": True}
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=betas, eps=train.adam_epsilon, **walk)


def build_schedule(optimizer: torch.optim.Optimizer, *, train: TrainSpec, total_steps: int) -> LRScheduler:
    """Transformers' schedule of that name, over optimizer steps."""
    from transformers import get_scheduler

    warmup = train.warmup_steps or math.ceil(train.warmup_ratio * total_steps)
    name = "constant_with_warmup" if train.lr_scheduler_type == "constant" and warmup else train.lr_scheduler_type
    return get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total_steps)


def moves(schedule: LRScheduler, *, total_steps: int) -> bool:
    """Whether any step has a learning rate above zero."""
    rate: Any = schedule
    return any(rate.lr_lambdas[0](step) for step in range(total_steps))


@torch.no_grad()
def gradient_norm(counted: Iterable[nn.Parameter], *, device: torch.device) -> torch.Tensor:
    """The norm of all ranks' gradients, a float64 scalar on this rank's device.

    Squares are summed in float32 within a tensor (on a CPU, within rows of it) and in float64 beyond.

    Args:
        counted: trained parameters that this rank owns.
        device: of this rank; gradients may lie elsewhere.
    """
    return norm_of([local_part(p.grad) for p in counted if p.grad is not None], device=device)


def norm_of(gradients: list[torch.Tensor], *, device: torch.device) -> torch.Tensor:
    """As `gradient_norm`, of local parts that this rank owns."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for norms in (_norms_on_gpu, _norms_on_cpu):
        found = norms(gradients)
        if found:
            total += torch.cat([one.reshape(-1) for one in found]).double().square().sum().to(device)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.sqrt()


def _norms_on_gpu(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    there = [gradient for gradient in gradients if gradient.device.type != "cpu"]
    return list(torch._foreach_norm(there, 2, dtype=torch.float32)) if there else []  # pyright: ignore[reportPrivateImportUsage]  # as torch clips


def _norms_on_cpu(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    there = (gradient.reshape(-1) for gradient in gradients if gradient.device.type == "cpu")
    return [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32) for flat in there for rows in _rows(flat)]


def _rows(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = flat.numel() // _ROW * _ROW
    return flat[:whole].view(-1, _ROW), flat[whole:].view(1, -1)


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The rate the next step uses."""
    group: dict[str, Any] = optimizer.param_groups[0]
    return float(group["lr"])
