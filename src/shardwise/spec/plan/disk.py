"""Disk: the bytes that a run writes, and the type of the weights in its result."""

from dataclasses import dataclass
from typing import Any

from shardwise.spec.job.keys import Job
from shardwise.spec.layout.execution import Precision
from shardwise.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Bytes that a run writes.

    Attributes:
        checkpoint_bytes: of one checkpoint.
        checkpoints_bytes: of those that lie there at once: one more than `save_total_limit`, for an
            old one goes when the new one is whole; fewer where fewer are saved. Where the number of
            steps is not known, as if many were.
        merged_bytes: of `merged/`, which `shardwise merge` writes; 0 where there is nothing to
            merge.
        data_cache_bytes: of the prepared rows, in the cache; None where their number is not known.
        total_bytes: the most that lies in output_dir at once, without `merged/`.
    """

    checkpoint_bytes: int
    checkpoints_bytes: int
    final_bytes: int
    merged_bytes: int
    data_cache_bytes: int | None
    total_bytes: int

    @property
    def parts(self) -> str:
        """What lies in output_dir, in words."""
        count = self.checkpoints_bytes // self.checkpoint_bytes
        final = f"final/ of {format_bytes(self.final_bytes)}"
        if not count:
            return final
        return f"{count} checkpoint{'s' if count > 1 else ''} of {format_bytes(self.checkpoint_bytes)} and {final}"


def saved_type(job: Job, *, storage: Any, precision: Precision) -> Any:
    """The type of weights in `final/`: as stated, else the source's, of adapters the trained."""
    if job.train.save_dtype != "auto":
        return job.train.save_dtype
    if job.adapters is None:
        return storage
    return "bfloat16" if precision == "bf16" else "float32"
