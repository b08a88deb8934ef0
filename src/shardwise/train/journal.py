"""What a worker tells the outside: its phase, its progress, its end. Rank 0 writes for all; the others stay silent."""

from __future__ import annotations

import os
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwise.errors import InputError
from shardwise.spec.run import RunDirectory, announce, write_json, write_text


@dataclass(kw_only=True)
class Journal:
    """One worker's notes in the run directory.

    Attributes:
        phase: what the worker is doing, for the message if it fails.
        step: optimizer steps done.
    """

    run: RunDirectory
    rank: int
    phase: str = "starting"
    step: int = 0
    _began: float = field(default_factory=time.monotonic)

    def started(self) -> None:
        """Leaves the pid, by which the launcher passes on signals, and forgets an earlier failure."""
        self.run.rank_failure(self.rank).unlink(missing_ok=True)
        write_text(self.run.logs / f"rank_{self.rank}.pid", f"{os.getpid()}\n")

    def enter(self, phase: str, **detail: Any) -> None:
        """Notes a new phase."""
        self.phase = phase
        if self.rank == 0:
            announce(self.run, phase, **detail)
        self.say(f"{phase}" + "".join(f", {name} {value}" for name, value in detail.items()))

    def say(self, line: str) -> None:
        """A plain line on rank 0's standard output, which may have gone away."""
        if self.rank != 0:
            return
        try:
            print(f"[{time.monotonic() - self._began:7.1f} s] {line}", flush=True)
        except OSError:
            return

    def outcome(self, outcome: str, *, signal: int | None) -> None:
        """Notes how the run ended."""
        if self.rank == 0:
            write_json(self.run.logs / "outcome.json", {"outcome": outcome, "signal": signal, "step": self.step})

    def failed(self, error: BaseException) -> None:
        """Leaves the cause of this worker's failure, with the deepest place in this program or its caller."""
        place = _place(error)
        cause = {
            "time": time.time(),
            "rank": self.rank,
            "phase": self.phase if not self.step else f"{self.phase} (step {self.step + 1})",
            "error": type(error).__name__,
            "message": str(error) or type(error).__name__,
            "file": place[0],
            "line": place[1],
            "input_error": isinstance(error, InputError),
        }
        write_json(self.run.rank_failure(self.rank), cause)


def _place(error: BaseException) -> tuple[str, int]:
    """File name and line of the innermost frame of this package, or of the innermost frame at all."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "shardwise" in Path(frame.filename).parts]
    frame = (ours or frames or [None])[-1]
    return ("unknown", 0) if frame is None else (Path(frame.filename).name, frame.lineno or 0)
