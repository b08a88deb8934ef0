"""Published rows as they stand in the tables: cells by name, and what was measured, by kind and per GPU."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.units import GIB, MIB

#: Kinds of memory figures, never pooled: what the allocator has given out, what it holds, and what the driver sees.
#: `unstated` is compared with what the allocator holds, and stands apart in every table.
ALLOCATED, ACTIVE, RESERVED, DEVICE, UNSTATED = "allocated", "active", "reserved", "device", "unstated"
KINDS = (ALLOCATED, ACTIVE, RESERVED, DEVICE, UNSTATED)

#: How `mem_kind` begins -> the kind. None: not a peak of a step, so that nothing can be compared with it.
_KIND_BY_PREFIX: tuple[tuple[str, str | None], ...] = (
    ("allocated right after forward", None),
    ("capacity", None),
    ("allocated_peak", ALLOCATED),
    ("peak_memory_usage (torch max_memory_allocated)", ALLOCATED),
    ("mem-max-allocated", ALLOCATED),
    ("active_peak", ACTIVE),
    ("peak active", ACTIVE),
    ("reserved", RESERVED),
    ("nvidia-smi", DEVICE),
    ("NVML", DEVICE),
    ("MiB per GPU as printed (nvidia-smi style)", DEVICE),
)

#: Sources whose GB are 10^9 bytes: qwen-readme's 162.0 on two GPUs would be more GiB than these have.
_DECIMAL = ("trl-1m-2026", "qwen-readme")

_TOTAL = re.compile(r"TOTAL over (\d+) GPUs")
_SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"~?\s*([\d.,]+)\s*(s|sec|min|h)\b")


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row: what was run and what came out.

    Attributes:
        cells: every column's text, by name; empty where the source says nothing.
    """

    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """A cell without surrounding blanks."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """A cell as a number, or None where it is empty or words."""
        try:
            return float(self.text(column))
        except ValueError:
            return None

    def whole(self, column: str, *, default: int | None = None) -> int | None:
        """A cell as a whole number."""
        found = self.number(column)
        return default if found is None else int(found)

    @property
    def row_id(self) -> str:
        """The row's name, the same in both tables."""
        return self.text("row_id")

    @property
    def source(self) -> str:
        """Whose figures these are; rows of one source share a stack."""
        return self.text("source_id")

    @property
    def grade(self) -> str:
        """A: fully specified. B: one or two inputs missing. C: rough."""
        return self.text("spec_grade")

    @property
    def ran(self) -> bool:
        """Whether the run came to an end; otherwise it went out of memory."""
        return self.text("outcome") == "ok"


def read(path: Path) -> list[Published]:
    """Every row of one table."""
    with path.open(encoding="utf-8", newline="") as opened:
        return [Published(cells=cells) for cells in csv.DictReader(opened)]


def memory_figures(row: Published) -> dict[str, float]:
    """Bytes per GPU by kind. A row may have two: what PyTorch counted, and beside it what the driver saw."""
    figures: dict[str, float] = {}
    kind, gib = _kind(row.text("mem_kind")), row.number("peak_mem_gib_derived")
    if kind and gib is None and row.number("peak_mem_gb") is not None:
        # The unit is not certain: the figure stands with those of unstated kind, read as GiB where nothing says which.
        kind, gib = UNSTATED, row.number("peak_mem_gb")
        if gib is not None and row.source in _DECIMAL:
            gib *= 1e9 / GIB
    if row.ran and kind and gib is not None:
        figures[kind] = gib * GIB / _gpus_in_scope(row)
    seen = row.number("nvidia_smi_mib")
    if row.ran and seen is not None:
        figures[DEVICE] = seen * MIB
    return figures


def _kind(words: str) -> str | None:
    for prefix, kind in _KIND_BY_PREFIX:
        if words.startswith(prefix):
            return kind
    return UNSTATED if words else None


def _gpus_in_scope(row: Published) -> int:
    """Some tables print the sum over GPUs."""
    total = _TOTAL.search(row.text("mem_scope"))
    return int(total.group(1)) if total else 1


def tokens_per_second(row: Published, *, num_gpus: int, step_tokens: int, length: int) -> float | None:
    """Tokens per second over all GPUs, from whatever the source printed."""
    per_gpu, total = row.number("tokens_per_s_per_gpu"), row.number("tokens_per_s_total")
    if per_gpu is not None:
        return per_gpu * num_gpus
    if total is not None:
        return total
    seconds = row.number("step_time_s")
    if seconds:
        return step_tokens / seconds
    samples = row.number("samples_per_s_total")
    # Rounded to a whole number, a small rate says too little.
    if samples is not None and samples >= 10:
        return samples * length
    return _from_total_time(row, length=length)


def _from_total_time(row: Published, *, length: int) -> float | None:
    """Some print the time of so many samples."""
    counted = re.search(r"Time for ([\d,]+) samples", row.text("notes"))
    printed = _DURATION.search(row.text("total_time_as_printed"))
    if not counted or not printed:
        return None
    samples = int(counted.group(1).replace(",", ""))
    seconds = float(printed.group(1).replace(",", "")) * _SECONDS[printed.group(2)]
    return samples * length / seconds
