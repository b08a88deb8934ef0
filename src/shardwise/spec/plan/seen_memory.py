"""Seen: the memory that is forecast for the rows that a run has seen while it was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SeenMemory:
    """Bytes inside the allocator, by rank.

    Attributes:
        first, later: tokens of the longest row, with padding, of the first forwards of steps, and of their later ones;
            0 where steps have one. Rows of a step are sorted, the longest first.
        peaks: the most at one instant of training.
        phases: the most in each phase of `spec.run.PHASES`.
    """

    first: int
    later: int
    peaks: dict[int, int]
    phases: dict[int, dict[str, int]]

    @property
    def rows(self) -> str:
        """What was seen, in words."""
        later = f" in the first forward of a step and {self.later:,} in later ones" if self.later else ""
        return f"rows of {self.first:,} tokens{later}"
