"""What a worker writes into the run directory: phase, progress, outcome. Mostly rank 0 writes."""

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shardwise
from shardwise.errors import InputError
from shardwise.spec.run import CONSOLE, RunDirectory, announce, append_line, write_json, write_text
from shardwise.train.measuring.memory import Held
from shardwise.train.watching.progress import Progress

#: Phases that follow the last step.
_BEHIND_TRAINING = ("saving", "verifying", "done")

_PACKAGE = Path(shardwise.__file__).parent


@dataclass(kw_only=True)
class Journal:
    """One worker's notes in the run directory. `phase`: what it is doing; `step`: optimizer steps
    done; `in_step`: whether the next one has begun; `holding`: measures what model and optimizer
    hold; `last_word`: held by the thread that writes why this rank ends, and ends it."""

    run: RunDirectory
    rank: int
    phase: str = "starting"
    step: int = 0
    in_step: bool = False
    progress: Progress = field(default_factory=Progress)
    holding: Callable[[], Held] | None = None
    last_word: threading.Lock = field(default_factory=threading.Lock)
    _began: float = field(default_factory=time.monotonic)
    _complained: bool = False

    def started(self) -> None:
        """Writes the pid, for the launcher's signals, and removes what an earlier start left."""
        self.run.rank_failure(self.rank).unlink(missing_ok=True)
        self.run.rank_standing(self.rank).unlink(missing_ok=True)
        write_text(self.run.rank_pid(self.rank), f"{os.getpid()}\n")

    def enter(self, phase: str, **detail: Any) -> None:
        """Notes a new phase."""
        self.turn_to(phase)
        if self.rank == 0:
            self.note(lambda: announce(self.run, phase, **detail))
        self.say(phase + "".join(f", {name} {value}" for name, value in detail.items()))

    def stepping(self) -> None:
        """Notes that the next optimizer step begins."""
        self.in_step = True

    def stepped(self, step: int) -> None:
        """Notes that an optimizer step is done."""
        self.in_step, self.step = False, step
        self.progress.step()

    @property
    def at(self) -> str:
        """The phase, and the step it is in or comes after, for messages."""
        if self.phase == "training" and self.in_step:
            return f"{self.phase} (step {self.step + 1})"
        return f"{self.phase} (after step {self.step})" if self.step else self.phase

    @property
    def before_first_step(self) -> str:
        """The phase before this process's first step; empty after it, or where no step is left."""
        if self.progress.has_stepped or self.phase in _BEHIND_TRAINING:
            return ""
        return "in its first step" if self.phase == "training" else f"{self.phase}, before the first step"

    def turn_to(self, phase: str) -> None:
        """Sets the phase without announcing it."""
        self.phase = phase
        self.progress.touch()

    def note(self, write: Callable[[], None]) -> None:
        """Runs a write whose failure is reported once and stops nothing."""
        try:
            write()
        except OSError as error:
            if not self._complained:
                self._complained = True
                self.say(f"WARNING: {error.filename or self.run.root} cannot be written ({error.strerror}); going on")

    def say(self, line: str) -> None:
        """Prints a line on rank 0."""
        if self.rank == 0:
            with suppress(OSError):
                print(f"[{time.monotonic() - self._began:7.1f} s] {line}", flush=True)

    def warn(self, sentence: str) -> None:
        """Prints a warning, and shows it to whoever follows the run."""
        self.say(f"WARNING: {sentence}")
        if self.rank == 0:
            line = " ".join(sentence.split())
            self.note(lambda: append_line(self.run.notices, {"time": time.time(), "notice": line}))

    def outcome(self, outcome: str, *, signal: int | None, saved_step: int | None = None) -> None:
        """Writes how the run ended, and the step of the checkpoint that a restart resumes from."""
        if self.rank == 0:
            ended = {"outcome": outcome, "signal": signal, "step": self.step, "saved_step": saved_step}
            write_json(self.run.outcome, ended)

    def failed(self, error: BaseException) -> None:
        """Writes the cause of this worker's failure; the process ends next."""
        # Never released: the watchdog may not write another cause over this one.
        self.last_word.acquire()
        self.write_failure(error, rank=self.rank, phase=self.at)

    def write_failure(self, error: BaseException, *, rank: int, phase: str) -> None:
        """Writes the cause of a rank's failure, with its place in this package or in its caller;
        says it, once, on the console of which this rank speaks for its node."""
        message = str(error) or type(error).__name__
        if isinstance(error, SystemExit):
            status = error.code if error.code is not None else ""
            message = f"something called exit({status}) inside the training process"
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
        place = (ours or frames or [None])[-1]
        cause = {
            "time": time.time(),
            "rank": rank,
            "phase": phase,
            "error": type(error).__name__,
            "message": message,
            "file": place and Path(place.filename).name,
            "line": place and place.lineno,
            "input_error": isinstance(error, InputError),
        }
        write_json(self.run.rank_failure(rank), cause)
        console = os.environ.pop(CONSOLE, None)
        if console is not None:
            text = f"error: rank {self.rank} on {socket.gethostname()}: {message}; rank 0 says what came first\n"
            with suppress(OSError):
                os.write(int(console), text.encode())
