"""Which tokens of a row share a document, for transformers' masks: the host knows whether rows are packed.

transformers looks at the positions in every forward, once for each kind of mask, and the host waits for the device.
"""

from __future__ import annotations

import torch


def state_packed(packed: bool) -> None:
    """Says for this process whether rows hold several documents, whose positions restart; else masks are causal."""
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = documents_of if packed else _one_document


def documents_of(position_ids: torch.Tensor) -> torch.Tensor:
    """The document of each token within its row, counted from 0, by positions [batch, length] that restart."""
    begins = position_ids[:, 1:] != position_ids[:, :-1] + 1
    return torch.nn.functional.pad(begins.cumsum(-1), (1, 0))


def _one_document(position_ids: torch.Tensor) -> None:
    """Of a row: nothing to tell apart."""
