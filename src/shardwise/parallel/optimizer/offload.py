"""Optimizer offload: the optimizer steps copies of weights in host memory, next to its states.

Behind backward the gradients of what a rank steps go to the host, the step is computed there, and
the new values go back (Ren et al., 2021, "ZeRO-Offload"). A copy has the type and shape of a local
part, so that a step on the host is the step that the device would take. On a GPU copies are
page-locked and do not block the host, which waits once for all gradients; without a GPU the host is
the device, and what holds is the arithmetic, not the saving.
"""

import torch
from torch import nn

from shardwise.parallel.optimizer.stepped import Detour, Named


class HostCopies(Detour):
    """Copies in host memory of `originals` on a device (`parallel/optimizer/stepped.py`)."""

    def __init__(self, originals: Detour, device: torch.device) -> None:
        self.placed, self.device = originals.placed, device
        self.named: Named = [(name, nn.Parameter(self._room_for(original))) for name, original in originals.named]
        self._pairs = [(copy, original) for (_, copy), (_, original) in zip(self.named, originals.named, strict=True)]
        self.reread()

    def before_step(self) -> None:
        """Brings the gradients to the host, and frees them on the device. An original without a
        gradient leaves its copy's alone, so that states can be created by a step of zeros."""
        for copy, original in self._pairs:
            if original.grad is not None:
                copy.grad = self._room_for(original.grad)
                copy.grad.copy_(original.grad, non_blocking=True)
                original.grad = None
        self._wait()

    @torch.no_grad()
    def after_step(self) -> None:
        """Brings the new values to the device; what computes with them waits, the host does not."""
        for copy, original in self._pairs:
            original.copy_(copy, non_blocking=True)

    @torch.no_grad()
    def reread(self) -> None:
        """Copies the originals again."""
        for copy, original in self._pairs:
            copy.copy_(original, non_blocking=True)
        self._wait()

    def _room_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory for a tensor; PyTorch keeps freed page-locked memory for the next."""
        return torch.empty_like(tensor.detach(), device="cpu", pin_memory=self.device.type == "cuda")

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
