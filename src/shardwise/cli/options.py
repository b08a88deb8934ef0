"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job, such as train.learning_rate=1e-4."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]
