"""Where the verbs write: a terminal with colours, or a pipe without a single escape code."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_A_PIPE = 120


def make_console() -> Console:
    """A console on stdout; COLUMNS sets its width, NO_COLOR and TERM=dumb are heard."""
    from rich.console import Console

    width = None
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = WIDTH_OF_A_PIPE
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")
