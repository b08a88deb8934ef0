"""The console of all commands: colours on a terminal, no escape codes in a pipe."""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from rich.console import Console

WIDTH_OF_A_PIPE = 130


class PatientConsole(Console):
    """A console that goes quiet when its reader closes the pipe, so that the program goes on."""

    def on_broken_pipe(self) -> None:
        """Replaces rich's behaviour, which ends the program."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        # Python flushes the rest at exit, which must not fail.
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.close(nowhere)


def make_console(file: IO[str] | None = None) -> Console:
    """A console on stdout; respects COLUMNS, NO_COLOR and TERM=dumb."""
    width = None
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = WIDTH_OF_A_PIPE
    return PatientConsole(file=file, width=width, highlight=False, markup=False, emoji=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
