"""Optimizer, learning rate schedule, the norm of gradients, and the update of a step: clipped, and
skipped if loss or norm is not finite. The host reads both once.

torch's fused optimizers clip (`grad_scale`) and leave everything as it is (`found_inf`) by what is
on their device, so that they are launched before the host knows. For others the host reads first.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from shardwise.parallel.optimizer.adafactor import Adafactor
from shardwise.parallel.optimizer.adamw_8bit import build_adamw_8bit
from shardwise.parallel.optimizer.stepped import Named
from shardwise.parallel.ownership import local_part
from shardwise.spec.job.keys import TrainSpec

#: Row length for norms on a CPU, where torch's norm of 16 million float32 elements is 7e-4 too
#: small; of rows, 2e-8.
_ROW = 512

#: Names of biases, and of norms, also those of two dimensions, as of experts or heads.
_UNDECAYED = re.compile(r"(bias|norm\.(weight|scale))$")


def build_optimizer(
    named: Named, *, train: TrainSpec, name: str, wholes: Mapping[Tensor, Tensor] | None = None
) -> torch.optim.Optimizer:
    """The optimizer of that name over trainable parameters, of which a stage may have none. Weight
    decay is of matrices only, not of norms, biases and DoRA's magnitudes, which Transformers
    decays. `wholes`: for each parameter a tensor with the shape and placement of the whole."""
    decays = {p: p.ndim >= 2 and not _UNDECAYED.search(its) for its, p in named if p.requires_grad}
    wholes = {p: p for p in decays} if wholes is None else wholes
    groups = [
        {"params": [p for p, decayed in decays.items() if decayed], "weight_decay": train.weight_decay},
        {"params": [p for p, decayed in decays.items() if not decayed], "weight_decay": 0.0},
    ]
    # A stage may train nothing: torch takes a group without parameters, but no empty list.
    groups = [group for group in groups if group["params"]] or groups[:1]
    rate: dict[str, Any] = {"lr": train.learning_rate}
    if name == "sgd":
        return torch.optim.SGD(groups, **rate, momentum=train.momentum)
    if name == "adafactor":
        return Adafactor(groups, **rate, placed=wholes)
    adam: dict[str, Any] = {**rate, "betas": (train.adam_beta1, train.adam_beta2), "eps": train.adam_epsilon}
    if name == "adamw_8bit":
        return build_adamw_8bit(groups, placed=wholes, **adam)
    adam |= {"foreach": True} if name == "adamw_foreach" else {"fused": True}
    return torch.optim.AdamW(groups, **adam)


def build_schedule(optimizer: torch.optim.Optimizer, *, train: TrainSpec, total_steps: int) -> LRScheduler:
    """Transformers' schedule of that name, over optimizer steps."""
    from transformers import get_scheduler

    warmup, _ = train.warmup(total_steps)
    name = "constant_with_warmup" if train.lr_scheduler_type == "constant" and warmup else train.lr_scheduler_type
    return get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=total_steps)


def gradient_norm(counted: Iterable[nn.Parameter], *, device: torch.device) -> Tensor:
    """The norm of all ranks' gradients, a float64 scalar; `counted`: parameters owned here."""
    return norm_of([local_part(p.grad) for p in counted if p.grad is not None], device=device)


@torch.no_grad()
def norm_of(gradients: list[Tensor], *, device: torch.device) -> Tensor:
    """Of local parts. Squares are summed in float32 in a tensor or row, in float64 beyond."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    on_gpu = [gradient for gradient in gradients if gradient.device.type != "cpu"]
    on_cpu = [gradient for gradient in gradients if gradient.device.type == "cpu"]
    of_wholes = torch._foreach_norm(on_gpu, 2, dtype=torch.float32) if on_gpu else ()  # pyright: ignore[reportPrivateImportUsage]  # as torch clips
    for found in (of_wholes, [norms for gradient in on_cpu for norms in _norms_of_rows(gradient)]):
        if found:
            total += torch.cat([one.reshape(-1) for one in found]).double().square().sum().to(device)
    if dist.is_initialized():
        dist.all_reduce(total)
    return total.sqrt()


def _norms_of_rows(gradient: Tensor) -> list[Tensor]:
    flat = gradient.reshape(-1)
    # In rows: a sum over millions of float32 loses digits on a CPU, and ranks would differ.
    whole = flat.numel() // _ROW * _ROW
    rows = (flat[:whole].view(-1, _ROW), flat[whole:].view(1, -1))
    return [torch.linalg.vector_norm(each, dim=1, dtype=torch.float32) for each in rows]


class Update:
    """Loss and gradient norm of a step, float64 scalars on their way to the host, and what is done
    by them. `scale`: by which gradients are too large; `max_norm`: for clipping, or 0."""

    def __init__(self, *, loss: torch.Tensor, norm: torch.Tensor, max_norm: float, scale: float = 1.0) -> None:
        norm = norm / scale
        self._norm, self._max_norm, self._scale = norm, max_norm, scale
        # One copy to the host for both, which waits for nothing until it is read.
        self._there = torch.stack([loss, norm])
        self._here = self._there.to("cpu", non_blocking=True)  # page-locked
        self._arrives = torch.cuda.Event() if self._there.is_cuda else None
        if self._arrives is not None:
            self._arrives.record()

    @cached_property
    def figures(self) -> tuple[float, float]:
        """Loss and norm. The host waits for what was launched before this update, not after it."""
        if self._arrives is not None:
            self._arrives.synchronize()
        loss, norm = self._here.tolist()
        return loss, norm

    def launch(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], *, check: Callable[[], bool]
    ) -> None:
        """Steps by clipped gradients of `parameters`, and frees these. `check`: whether the step is
        taken, or raises; to be called again once everything is launched."""
        groups, device = optimizer.param_groups, self._there.device
        if all(group.get("fused") and all(p.device == device for p in group["params"]) for group in groups):
            # What torch's GradScaler hands to fused optimizers.
            given = {"found_inf": (~self._there.isfinite().all()).float(), "grad_scale": self._divisor()}
            vars(optimizer).update(given)
            optimizer.step()
            # Left there, they would divide the gradients of a step that is taken without them.
            for name in given:
                delattr(optimizer, name)
        elif check():
            self._clip([local_part(p.grad) for p in parameters if p.grad is not None])
            optimizer.step()
        optimizer.zero_grad()

    def _divisor(self) -> torch.Tensor | None:
        """By which gradients are divided; the small number is that of torch's clip_grad_norm_."""
        if not self._max_norm:
            return None if self._scale == 1 else torch.full_like(self._norm, self._scale, dtype=torch.float32)
        return (((self._norm + 1e-6) / self._max_norm).clamp(min=1.0) * self._scale).float()

    def _clip(self, gradients: list[torch.Tensor]) -> None:
        clipped = self._max_norm / (self.figures[1] + 1e-6)
        scale = (clipped if 0 < clipped < 1 else 1.0) / self._scale
        if gradients and scale != 1:
            torch._foreach_mul_(gradients, scale)  # pyright: ignore[reportPrivateImportUsage]  # as torch clips
