"""How much a search had to do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class Effort:
    """How many executions were open, and how many needed a forecast.

    Attributes:
        open: considered, by a bound or a forecast.
        is_large: so many are open on the whole cluster that those of no interest are not looked at closely.
        memory: forecasts of memory made.
        time: forecasts of time made.
    """

    open: int = 0
    is_large: bool = False
    memory: int = 0
    time: int = 0
