"""The update of a step: clipped; skipped if loss or norm is not finite. The host reads both once.

torch's fused optimizers clip (`grad_scale`) and leave everything as it is (`found_inf`) by what is
on their device, so that they are launched before the host knows. For others the host reads first.
"""

from collections.abc import Callable, Iterable
from functools import cached_property

import torch
from torch import nn

from shardwise.parallel.ownership import local_part


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
