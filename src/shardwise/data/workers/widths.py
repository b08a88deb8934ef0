"""Masks of byte-level tokenizers from the bytes that each token stands for: faster than from offsets.

Tokens of such a tokenizer are cut out of the text's bytes one after the other. Where the bytes of a row's tokens do not
add up to those of its text (a token that swallowed white space, a text that was normalised), offsets are asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwise.data.workers.template import Span

Widths = npt.NDArray[np.int32]


def byte_widths(tokenizer: Any) -> Widths | None:
    """For each id the bytes of its token; None where tokens are not cut out of the bytes of NFC text alone, or offsets
    mean something else."""
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    steps = str(backend.pre_tokenizer)
    is_plain = (
        type(tokenizer)._encode_plus is PreTrainedTokenizerFast._encode_plus
        and type(backend.normalizer).__name__ in ("NoneType", "NFC")
        and type(backend.decoder).__name__ == "ByteLevel"
        and "ByteLevel" in steps
        and "add_prefix_space=True" not in steps
        and "trim_offsets=True" not in str(backend.post_processor)
    )
    if not is_plain:
        return None
    ids = backend.get_vocab(with_added_tokens=True)
    widths = np.zeros(max(ids.values()) + 1, np.int32)
    added = tokenizer.added_tokens_encoder
    for token, ident in ids.items():
        widths[ident] = len(token.encode() if token in added else token)
    return widths


def mask_by_widths(
    ids: npt.NDArray[np.int32], widths: Widths, *, text: str, spans: Sequence[Span]
) -> npt.NDArray[np.bool_] | None:
    """Which tokens overlap a trained span; None where the tokens' bytes are not the text's."""
    own = widths[ids]
    ends = np.cumsum(own)
    is_ascii = text.isascii()
    num_bytes = len(text) if is_ascii else len(text.encode())
    if (ends[-1] if len(ends) else 0) != num_bytes or not (is_ascii or unicodedata.is_normalized("NFC", text)):
        return None
    edges = np.array(spans, np.int64).reshape(-1, 2)
    if not is_ascii:
        edges = np.array([[len(text[:edge].encode()) for edge in span] for span in spans], np.int64).reshape(-1, 2)
    first, last = (
        np.searchsorted(ends, edges[:, 0], side="right"),
        np.searchsorted(ends - own, edges[:, 1], side="left"),
    )
    mask = np.zeros(len(ids), bool)
    for start, stop in zip(first, last, strict=True):
        mask[start:stop] = True
    return mask
