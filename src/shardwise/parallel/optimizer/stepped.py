"""What the optimizer steps: the trained parameters, or parameters that stand in for them (shards, copies on the host).

A detour maps parameters to stand-ins of the same names and global shapes. It passes gradients on before a step and
values back after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

Named = list[tuple[str, nn.Parameter]]


class Detour(Protocol):
    """Maps parameters to those that are stepped in their place."""

    @property
    def named(self) -> Named:
        """The stand-ins, under the names of the original parameters."""
        ...

    def before_step(self) -> None:
        """Passes gradients to the stand-ins."""
        ...

    def after_step(self) -> None:
        """Passes values back, and clears gradients."""
        ...

    def reread(self) -> None:
        """Copies values that were set other than by a step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """The optimizer's parameters: the trained ones, or stand-ins of these through detours, applied in their order."""

    trained: Named
    detours: tuple[Detour, ...] = ()

    @property
    def named(self) -> Named:
        """The optimizer's parameters by name."""
        return self.detours[-1].named if self.detours else self.trained

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The optimizer's parameters."""
        return [parameter for _, parameter in self.named]

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Registers the detours as hooks around every step of the optimizer."""
        for detour in self.detours:
            optimizer.register_step_pre_hook(lambda *_, detour=detour: detour.before_step())
        for detour in reversed(self.detours):
            optimizer.register_step_post_hook(lambda *_, detour=detour: detour.after_step())

    def reread(self) -> None:
        """To be called after weights were set other than by a step."""
        for detour in self.detours:
            detour.reread()
