"""Optimizer, schedule and clipping, from the libraries that define them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler

from shardwise.errors import UnsupportedError
from shardwise.spec.job import TrainSpec


def build_optimizer(parameters: Iterable[nn.Parameter], *, train: TrainSpec, name: str) -> torch.optim.Optimizer:
    """AdamW (fused: no temporaries beside the states) or SGD over the trainable parameters.

    Weight decay acts on matrices only; norms and biases (fewer than two dims) are left out, as in Transformers.
    """
    trainable = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    match name:
        case "adamw":
            betas = (train.adam_beta1, train.adam_beta2)
            return torch.optim.AdamW(groups, lr=train.learning_rate, betas=betas, eps=train.adam_epsilon, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=train.learning_rate, momentum=train.momentum)
        case _:
            raise UnsupportedError(f"optimizer {name} is not trained by this version; use adamw or sgd")


def build_schedule(optimizer: torch.optim.Optimizer, *, train: TrainSpec, total_steps: int) -> LRScheduler:
    """Transformers' schedule of that name, over optimizer steps, whatever the number of ranks."""
    from transformers import get_scheduler

    warmup = train.warmup_steps or math.ceil(train.warmup_ratio * total_steps)
    name = "constant_with_warmup" if train.lr_scheduler_type == "constant" and warmup else train.lr_scheduler_type
    return get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total_steps)


def clip_gradients(parameters: Sequence[nn.Parameter], *, max_norm: float) -> float:
    """Scales gradients so that their one norm over all ranks is at most `max_norm`, and returns it unscaled.

    Sharded gradients are summed over their mesh, replicated ones counted once. With `max_norm` 0, or where the norm is
    not finite, nothing is scaled.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    total: torch.Tensor = nn.utils.get_total_norm(gradients)
    norm = (total.full_tensor() if isinstance(total, DTensor) else total).item()
    if max_norm and math.isfinite(norm):
        nn.utils.clip_grads_with_norm_(parameters, max_norm, torch.tensor(norm, device=total.device))
    return norm


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The rate the next step uses."""
    group: dict[str, Any] = optimizer.param_groups[0]
    return float(group["lr"])
