"""The program `shardwise`: its commands, and how errors are printed."""

import functools
import gc
import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwise.cli.after import chat, export, merge, report
from shardwise.cli.data import data
from shardwise.cli.init import init
from shardwise.cli.layouts import compare, verify
from shardwise.cli.machine import doctor, probe
from shardwise.cli.plan import plan, rehearse
from shardwise.cli.serve import serve
from shardwise.cli.train import train
from shardwise.errors import InputError, ShardwiseError

VERBS = (init, plan, data, rehearse, train, compare, verify, report, merge, chat, export, serve, doctor, probe)

#: New objects after which Python looks for cycles among them. Imports and plans make many and
#: hardly a cycle; Python's own 700 costs a plan some 5 % of its seconds.
_OBJECTS = 100_000


def main(arguments: list[str] | None = None) -> None:
    """Runs one command; exits 0, 1 (no, or failed), 2 (bad input), 130 or 143 (stopped)."""
    gc.set_threshold(_OBJECTS)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    said = sys.argv[1:] if arguments is None else arguments
    # Shells leave the `~` of `--output=~/plan.json` as it is.
    build_app()(args=[re.sub(r"^(--[a-z-]+=)~(?=/)", lambda found: f"{found[1]}{Path.home()}", one) for one in said])


def build_app() -> typer.Typer:
    """The commands as one program."""
    plain: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
    app = typer.Typer(name="shardwise", no_args_is_help=True, **plain)
    app.callback()(_program)
    for verb in VERBS:
        app.command()(saying_errors(verb))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        from shardwise import __version__

        typer.echo(f"shardwise {__version__}")
        raise typer.Exit


def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Know that a fine-tuning run fits before you rent the GPUs, then train it on any of them."""


def saying_errors(verb: Callable[..., None]) -> Callable[..., None]:
    """Prints a user's errors on stderr; with SHARDWISE_DEBUG=1 it shows the traceback."""

    @functools.wraps(verb)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            verb(*args, **kwargs)
        except ShardwiseError as error:
            if os.environ.get("SHARDWISE_DEBUG") == "1":
                raise
            messages = str(error).splitlines() if isinstance(error, InputError) else [str(error)]
            for message in [] if getattr(error, "already_said", False) else messages:
                with suppress(OSError):
                    print(f"error: {message}", file=sys.stderr, flush=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return run


if __name__ == "__main__":
    main()
