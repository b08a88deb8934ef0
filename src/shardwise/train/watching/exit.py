"""Ends a worker process without the interpreter's shutdown.

Threads of gloo and NCCL outlive their process groups. The shutdown may end one of them inside C++, which aborts the
process: `terminate called without an active exception`, and a finished run would count as failed.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """Runs the functions registered with `atexit`, flushes, and exits at once, without waiting for threads."""
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # what a shutdown calls; an error in it is printed
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it may have gone away
            stream.flush()
    os._exit(status)


@contextmanager
def ended_after(seconds: float, status: int) -> Generator[None]:
    """Ends the process with `status` where what is inside takes longer."""
    timer = threading.Timer(seconds, _give_up, (seconds, status))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float, status: int) -> NoReturn:
    print(f"process groups were not destroyed within {seconds:g} s; the run is complete", file=sys.stderr)
    end_process(status)
