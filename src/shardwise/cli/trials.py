"""Options that several commands share, and the progress of those that run one job under several layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from shardwise.api import Trying, Update
    from shardwise.cli.progress import ProgressDisplay


Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job, such as train.learning_rate=1e-4."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables.")]


LAYOUTS_HELP = (
    "Such as single,ddp,fsdp,gpipe,fsdp+tp. fsdp-4: fsdp on 4 processes; job: the job's own layout; all: every layout."
)

Job = Annotated[str, typer.Argument(metavar="JOB", help="Job file (YAML), or the plan.json of `shardwise plan`.")]


def names(text: str) -> list[str]:
    """The layouts of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


class TrialProgress:
    """One line for each layout; on a terminal, below it the live view of its training."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: ProgressDisplay | None = None

    def __enter__(self) -> TrialProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_one()

    def show(self, update: Update | Trying) -> None:
        """Shows one update."""
        from shardwise.api import Notice, Planned, Trying
        from shardwise.cli.progress import ProgressDisplay

        if isinstance(update, Trying):
            self._end_one()
            again = f", once more with {update.again}" if update.again else ""
            self._console.print(f"{update.layout} ({update.number} of {update.total}){again}")
            self._progress = ProgressDisplay(self._console)
            return
        is_shown = isinstance(update, Notice) or (self._console.is_terminal and not isinstance(update, Planned))
        if self._progress is not None and is_shown:
            self._progress.show(update)

    def _end_one(self) -> None:
        if self._progress is not None:
            self._progress.__exit__()
            self._progress = None
