"""The first documents of prepared data as text, cut where trained tokens begin and end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.data.pool import Pool
from shardwise.data.store import PreparedData

PREVIEW_ROWS = 2
PREVIEW_TOKENS = 512


def preview(pool: Pool, folder: Path) -> list[dict[str, Any]]:
    """The first documents of a store: file, line, and the text as (piece, whether it is trained)."""
    data = PreparedData.open(folder)
    offsets = data.arrays["offsets"]
    shown: list[dict[str, Any]] = []
    for document in range(min(PREVIEW_ROWS, len(offsets) - 1)):
        start, stop = int(offsets[document]), int(min(offsets[document + 1], offsets[document] + PREVIEW_TOKENS))
        trained = data.arrays["trained"][start:stop].copy()
        trained[0] = False
        edges = [0, *(np.flatnonzero(np.diff(trained)) + 1), stop - start]
        ids = data.arrays["tokens"][start:stop]
        pieces = [ids[a:b].tolist() for a, b in pairwise(edges)]
        texts = pool.ask({"do": "decode", "pieces": pieces}, name="the preview")["texts"]
        flags = [bool(trained[edge]) for edge in edges[:-1]]
        shown.append(
            {
                "file": int(data.arrays["doc_file"][document]),
                "line": int(data.arrays["doc_line"][document]),
                "text": [list(piece) for piece in zip(texts, flags, strict=True)],
            }
        )
    return shown
