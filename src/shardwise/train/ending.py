"""How the process of a rank ends whose work is done: without the interpreter's shutdown, which may abort it.

Threads of gloo and NCCL outlive the destruction of their groups, because others still refer to these. One that needs
the interpreter while it shuts down is ended by it inside C++ that allows no such end, and takes the process with it:
`terminate called without an active exception`, and a run that has finished would count as failed.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """Ends this process at once, after all that the interpreter's shutdown would do for others.

    Functions registered with `atexit` run: by these trackers hand over what they still hold, multiprocessing and
    compilers end their children, temporary folders disappear. Threads are not waited for, and nothing is destroyed.
    """
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # what a shutdown calls; an error in it is printed
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it may have gone away
            stream.flush()
    os._exit(status)
