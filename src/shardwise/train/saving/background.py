"""Copies in host memory, from which checkpoints are written in the background."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class HostCopies:
    """Reusable copies of tensors in host memory, pinned where there is a GPU."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def of(self, tensors: Mapping[str, torch.Tensor], *, device: torch.device) -> dict[str, torch.Tensor]:
        """Copies tensors as they are now, by the same names; valid until the next call."""
        for name, tensor in tensors.items():
            copy = self._kept.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                self._kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
            self._kept[name].copy_(tensor, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return {name: self._kept[name] for name in tensors}

    def release(self, device: torch.device) -> None:
        """Frees the memory, unless it is pinned, which takes long to allocate."""
        if device.type != "cuda":
            self._kept = {}
