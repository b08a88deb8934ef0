"""The console of all commands: colours on a terminal, no escape codes in a pipe."""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from rich.console import Console
from rich.table import Table

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


def figures_table(first: str, *figures: str) -> Table:
    """A table without lines, whose rows are a name and figures."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
