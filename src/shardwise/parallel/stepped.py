"""What the optimizer steps: the trained parameters themselves, or what stands in for them, by one detour or several.

A detour leads from parameters to others of the same names and global shapes, which are stepped in their place. It
brings gradients there before each step of the optimizer, and values back behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

Named = list[tuple[str, nn.Parameter]]


class Detour(Protocol):
    """A way from parameters to what is stepped in their place."""

    @property
    def named(self) -> Named:
        """What is stepped, under the names of what it stands for."""
        ...

    def before_step(self) -> None:
        """Brings gradients, of the parameters that have one."""
        ...

    def after_step(self) -> None:
        """Brings values back, and leaves no gradients behind."""
        ...

    def reread(self) -> None:
        """Takes over values that something else has given to the parameters."""
        ...


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """What the optimizer steps, under the names of the trained parameters.

    Attributes:
        trained: the parameters that training changes.
        detours: from those outwards; none where they are stepped themselves.
    """

    trained: Named
    detours: tuple[Detour, ...] = ()

    @property
    def named(self) -> Named:
        """What is handed to the optimizer, by name: checkpoints and guards find its states by these."""
        return self.detours[-1].named if self.detours else self.trained

    @property
    def parameters(self) -> list[nn.Parameter]:
        """What is handed to the optimizer."""
        return [parameter for _, parameter in self.named]

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes every step of the optimizer begin with the gradients of the weights, and end with their new values."""
        for detour in self.detours:
            optimizer.register_step_pre_hook(lambda *_, detour=detour: detour.before_step())
        for detour in reversed(self.detours):
            optimizer.register_step_post_hook(lambda *_, detour=detour: detour.after_step())

    def reread(self) -> None:
        """To be called when the weights were given values other than by a step."""
        for detour in self.detours:
            detour.reread()
