"""What commands share: options, and a console without escape codes in a pipe."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Any, Protocol, TypeVar

import typer
from rich.console import Console
from rich.table import Table

Job = Annotated[str, typer.Argument(metavar="JOB", help="Job file (YAML), or the plan.json of `shardwise plan`.")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The output_dir of a training run.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job, such as train.learning_rate=1e-4."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]

WIDTH_OF_A_PIPE = 130


class _Answer(Protocol):
    def to_json(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=_Answer)


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
    is_pipe = not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit()
    width = WIDTH_OF_A_PIPE if is_pipe else None
    return PatientConsole(file=file, width=width, highlight=False, markup=False, emoji=False)


def plain_table(**options: Any) -> Table:
    """A table without lines."""
    return Table(box=None, padding=(0, 1), pad_edge=False, **options)


def figures_table(first: str, *figures: str) -> Table:
    """A table whose rows are a name and figures."""
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_answer(found: T, show: Callable[[T, Console], None], *, as_json: bool) -> None:
    """An answer as JSON, or as a command shows it."""
    if as_json:
        print_json(found.to_json())
    else:
        show(found, make_console())


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
