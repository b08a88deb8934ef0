"""A worker's output for one chunk: three flat files that the parent joins in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from shardwise.data.tokens import Tokens

#: One record per kept row: where it stood, how long it is, how many labels count.
ROW = np.dtype([("line", "<u4"), ("length", "<i4"), ("trained", "<i4"), ("was_truncated", "?")])


class ShardWriter:
    """Appends rows to `<stem>.tokens` (int32), `<stem>.trained` (bool) and `<stem>.rows` (ROW)."""

    def __init__(self, stem: Path) -> None:
        self._files = [stem.with_suffix(suffix).open("wb") for suffix in (".tokens", ".trained", ".rows")]

    def append(self, rows: list[tuple[int, Tokens]]) -> None:
        """Rows as (line, tokens)."""
        tokens, trained, records = self._files
        for _, row in rows:
            row.ids.astype("<i4", copy=False).tofile(tokens)
            row.trained.tofile(trained)
        facts = [(line, len(row.ids), row.num_trained, row.was_truncated) for line, row in rows]
        np.array(facts, ROW).tofile(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            file.close()


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one chunk became, on disk."""

    stem: Path
    file: int

    def rows(self) -> npt.NDArray[np.void]:
        """Records of `ROW`, one per kept row."""
        return np.fromfile(self.stem.with_suffix(".rows"), ROW)

    def tokens(self) -> npt.NDArray[np.int32]:
        """Token ids of all rows, one after the other."""
        return np.fromfile(self.stem.with_suffix(".tokens"), "<i4")

    def trained(self) -> npt.NDArray[np.bool_]:
        """The mask of trained tokens, like `tokens`."""
        return np.fromfile(self.stem.with_suffix(".trained"), np.bool_)

    def delete(self) -> None:
        """Frees the disk once the rows stand elsewhere."""
        for suffix in (".tokens", ".trained", ".rows"):
            self.stem.with_suffix(suffix).unlink()
