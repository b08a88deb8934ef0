"""`shardwise serve`: the planner as a page, and the runs below a folder"""

from pathlib import Path
from typing import Annotated

import typer

from shardwise.errors import InputError

_OF_EXPORT = "Make a folder of files in which a browser plans without a server, and end; needs npm and a network."
_OF_TOKENS = "At least 16 letters; without one, another address gets one that is made up."


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="What runs and models are looked for below.")
    ] = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than this machine's own: a token is asked for.")
    ] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(envvar="SHARDWISE_TOKEN", help=_OF_TOKENS)] = None,
    export: Annotated[Path | None, typer.Option(metavar="FOLDER", help=_OF_EXPORT)] = None,
) -> None:
    """Serve the planner as a page on this machine: plans, runs, and a toy model.

    Nothing there starts, stops or changes a run. Stop it with Ctrl-C.
    """
    if export is not None:
        from shardwise.web import folder as exported

        exported.export(export, told=typer.echo)
        return
    try:
        from shardwise.web.app import listen
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed; `shardwise serve` needs it: pip install 'shardwise[web]'"
        raise InputError(message) from None
    listen(folder, host=host, port=port, token=token, told=typer.echo)
