"""What preparation tells the user on stderr: a bar on a terminal, plain lines elsewhere."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

QUIET_SECONDS = 10.0

Advance = Callable[[int], None]

#: Control characters, which could steer a terminal; names of files and columns come from strangers.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(text: str) -> None:
    """One line for the user, who may have gone away."""
    shown = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    with suppress(OSError, ValueError):  # ValueError: the stream is closed
        print(shown, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, *, total: int) -> Iterator[Advance]:
    """Shows how much of `total` is done until the block ends."""
    if not sys.stderr.isatty():
        yield _lines(what, total)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)


def _lines(what: str, total: int) -> Advance:
    done, last = 0, time.monotonic()

    def advance(amount: int) -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        if now - last >= QUIET_SECONDS:
            last = now
            say(f"{what}: {done * 100 // total} %")

    return advance
