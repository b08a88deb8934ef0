"""AdamW with 8-bit moments, by bitsandbytes (Dettmers et al., 2022), in blocks that no layout cuts.

A block is 256 neighbouring elements of a row, with one scale. Which tensors have such moments
follows from the whole tensor alone, so that a rank's part is quantised as on one process; moments
of the others stay in 32 bits.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from shardwise.spec.layout.execution import has_8bit_moments


def build_adamw_8bit(
    groups: Iterable[dict[str, Any]], *, placed: Mapping[torch.Tensor, torch.Tensor], **options: Any
) -> torch.optim.Optimizer:
    """The optimizer. `placed`: per parameter, a tensor of the whole's shape; `options`: AdamW's."""
    from bitsandbytes.optim.adamw import AdamW8bit

    short = {id(parameter) for parameter, whole in placed.items() if has_8bit_moments(tuple(whole.shape))}

    class _AdamW8bit(AdamW8bit):
        """Decides by the whole tensor, and counts steps as torch does, for checkpoints."""

        def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
            found = super().get_config(gindex, pindex, group)
            is_short = id(group["params"][pindex]) in short
            return found | {"optim_bits": 8 if is_short else 32, "min_8bit_size": 0}

        def update_step(self, group: dict[str, Any], p: torch.Tensor, gindex: int, pindex: int) -> None:
            state = self.state[p]
            state["step"] = int(state["step"])
            super().update_step(group, p, gindex, pindex)
            state["step"] = torch.tensor(float(state["step"]))

    return _AdamW8bit(list(groups), **options)
