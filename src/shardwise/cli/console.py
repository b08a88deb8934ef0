"""Where the verbs write: a terminal with colours, or a pipe without a single escape code."""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from rich.console import Console

WIDTH_OF_A_PIPE = 130


class PatientConsole(Console):
    """A console whose reader may leave: then it falls silent, and what the program does goes on."""

    def on_broken_pipe(self) -> None:
        """Rich would end the program here, and a training with it."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # What is still buffered must not fail when Python flushes it at the end.
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.close(nowhere)


def make_console(file: IO[str] | None = None) -> Console:
    """A console on stdout; COLUMNS sets its width, NO_COLOR and TERM=dumb are heard."""
    width = None
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = WIDTH_OF_A_PIPE
    return PatientConsole(file=file, width=width, highlight=False, markup=False, emoji=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
