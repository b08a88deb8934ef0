"""Every error a user can meet, as one tree.

An error is a sentence: what was found, what was expected, what to do. Errors about a file carry one
`Problem` per place, so that a user mends a file once and not once per error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

MAX_PROBLEMS_LISTED = 20
_QUOTED_LETTERS = 80
_SAID_LETTERS = 300


def quoted(value: object) -> str:
    """A stranger's value as a message shows it: on one line, and short, so that advice is seen."""
    text = repr(value)
    return text if len(text) <= _QUOTED_LETTERS else f"{text[: _QUOTED_LETTERS - 3]}..."


def said(error: BaseException) -> str:
    """A library's error as a message shows it: its first line with words, else its class's name. A
    line that ends in a colon continues in the next. Long text ends with a sentence or word."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if not line.endswith(":")), len(lines) - 1)
    text = " ".join(lines[: first + 1]) or type(error).__name__
    return text if len(text) <= _SAID_LETTERS else _beginning(text)


def _beginning(text: str) -> str:
    """As many sentences as fit, or words where the first sentence takes more than half the room."""
    room = text[: _SAID_LETTERS - len(" ...")]
    sentences = room[: room.rfind(". ") + 1]
    return sentences if 2 * len(sentences) >= _SAID_LETTERS else f"{room.rpartition(' ')[0] or room} ..."


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with the user's input. `where`: `file:line` (or `file` alone, or a `--flag`),
    or None without a place; `message`: what was found, what was expected and what to do."""

    message: str
    where: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class ShardwiseError(Exception):
    """Base of all errors that are printed as sentences, without a traceback."""

    exit_code = 1


class InputError(ShardwiseError):
    """The question cannot be answered as asked: bad job, data, model or hardware. Exit code 2."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Sequence[Problem], *, total: int | None = None) -> None:
        if isinstance(problems, str):
            problems = [Problem(message=problems)]
        elif isinstance(problems, Problem):
            problems = [problems]
        self.problems = tuple(problems)
        self.total = len(self.problems) if total is None else total
        super().__init__(str(self))

    @classmethod
    def at(cls, where: object, message: str) -> Self:
        """One problem at one place, such as a file."""
        return cls(Problem(where=str(where), message=message))

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:MAX_PROBLEMS_LISTED]]
        if self.total > len(lines):
            lines.append(f"... and {self.total - len(lines)} more ({self.total} in all)")
        return "\n".join(lines)


class JobError(InputError):
    """The job file or a `--set` override is not a valid job."""


class DataError(InputError):
    """A data file cannot be trained on."""


class ModelError(InputError):
    """A model's configuration or weights cannot be used."""


class HardwareError(InputError):
    """A hardware description names something unknown or impossible."""


class UnsupportedError(InputError):
    """The combination is understood but refused; the message names the nearest one that works."""


class RunDirectoryError(InputError):
    """A run directory is missing, damaged, or in use by another run."""


class DoesNotFitError(ShardwiseError):
    """No layout fits the hardware. Exit code 1, as for `plan`."""


class DamagedResultError(ShardwiseError):
    """A run had finished, and its result is no longer what was written."""


class WorkerFailedError(ShardwiseError):
    """A training process failed; the message holds the first cause: rank, phase, file and line."""


class RanOutOfMemoryError(WorkerFailedError):
    """A rank had no memory left, or the kernel killed it silently because the host had none."""


class StoppedError(ShardwiseError):
    """The run stopped on a signal after saving; exit code 143 (SIGTERM) or 130 (SIGINT)."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
