"""Chance: how often what is forecast like this fits, by the errors that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from shardwise.spec.job.strict import OPEN

#: From so many in 100 on, in a word.
_WORDS = ((95, "surely"), (80, "likely"), (50, "maybe"), (0, "hardly"))


@dataclass(frozen=True, kw_only=True)
class Chance:
    """That the chosen candidate fits.

    Attributes:
        in_100: from 1 to 99.
        group: whose errors it is from: `this trainer`, `other stacks`, perhaps with a kind of
            layout.
        rows: measured runs of that group, `sources` of how many sources.
        narrowed_by: the measurement that would narrow it most.
    """

    __pydantic_config__: ClassVar[ConfigDict] = OPEN

    in_100: int
    group: str
    rows: int
    sources: int
    narrowed_by: str

    @property
    def word(self) -> str:
        """Of the number."""
        return next(word for least, word in _WORDS if self.in_100 >= least)

    @property
    def sentence(self) -> str:
        """Where the number comes from."""
        return (
            f"the chance is from {self.rows} measured runs ({self.group}); what would narrow it most: "
            f"{self.narrowed_by}"
        )
