"""Python's search for circles, put off while a plan is made: very much is remembered, none of it points in a circle,
and going through all of it again and again would take a third of the time."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def circles_unsought() -> Generator[None]:
    """What nobody points to any more is let go all the same, at once."""
    sought = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if sought:
            gc.enable()
