"""What `make bench` wants of Shardwise beside Trainer, and whether it is so."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

#: Seconds from the last step to the end, above those of a plain write of the same bytes: of a toy, and of other models.
TOY_END_SECONDS, END_SECONDS = 1.0, 2.0

#: Shardwise's first step over Trainer's at most, its tokens per second over Trainer's at least, and its memory over
#: Trainer's at most; of mixtures on one process and on two.
FIRST_STEP, TOKENS = 1.15, 1.0
MIXTURE = {"mixture, 1 process": (1.0, 1.3, 0.8), "mixture, 2 processes": (1.0, 1.8, 0.8)}

#: Of preferences beside TRL: tokens per second at least, memory at most. Its first step is not judged: before it, in
#: full training, both compute the reference.
TRL_TOKENS, TRL_MEMORY = 1.3, 1.0


@dataclass(frozen=True, kw_only=True)
class Found:
    """Medians of one method on one number of processes. `first_step`, `tokens` and `memory`: over those of `other`
    (`trainer` or `trl`), None where that was not measured; `end_seconds`: above a plain write of the same bytes."""

    title: str
    first_step: float | None
    tokens: float | None
    memory: float | None
    end_seconds: float
    other: str = "trainer"


def judged(found: Found, *, toy: bool) -> list[tuple[bool, str]]:
    """Whether each goal is reached, with the line that says so."""
    most_end = TOY_END_SECONDS if toy else END_SECONDS
    lines = [_line(found, "s to the end above a plain write", found.end_seconds, at_most=most_end)]
    name, (first_step, tokens, memory) = "Trainer", MIXTURE.get(found.title, (FIRST_STEP, TOKENS, None))
    if found.other == "trl":
        name, first_step, tokens, memory = "TRL", None, TRL_TOKENS, TRL_MEMORY
    if found.first_step is not None and first_step is not None:
        lines.append(_line(found, f"x {name}'s time to the first step", found.first_step, at_most=first_step))
    if found.tokens is not None:
        lines.append(_line(found, f"x {name}'s tokens/s", found.tokens, at_least=tokens))
    if found.memory is not None and memory is not None:
        lines.append(_line(found, f"x {name}'s memory", found.memory, at_most=memory))
    return lines


def _line(
    found: Found, what: str, figure: float, *, at_most: float = float("inf"), at_least: float = 0.0
) -> tuple[bool, str]:
    is_good = at_least <= figure <= at_most
    wanted = f"at least {at_least:.2f}" if at_least else f"at most {at_most:.2f}"
    return is_good, f"{'PASS' if is_good else 'FAIL'}  {found.title:<20} {figure:6.2f} {what}, wanted {wanted}"


def plain_write(folder: Path) -> float:
    """Seconds to write and sync as many bytes as the run left in `final/`; 0 for a loop that saves nothing."""
    size = sum(path.stat().st_size for final in folder.glob("**/final") for path in final.rglob("*"))
    if not size:
        return 0.0
    block, left = bytes(16 * 2**20), size
    began = time.monotonic()
    with (folder / "plain").open("wb", buffering=0) as file:
        while left > 0:
            left -= file.write(block[:left])
        os.fsync(file.fileno())
    return time.monotonic() - began
