"""Ends a worker process without the interpreter's shutdown.

Threads of gloo and NCCL outlive their process groups. The shutdown may end one of them inside C++, which aborts the
process: `terminate called without an active exception`, and a finished run would count as failed.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """Runs the functions registered with `atexit`, flushes, and exits at once, without waiting for threads."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # what a shutdown calls; an error in it is printed
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it may have gone away
            stream.flush()
    os._exit(status)
