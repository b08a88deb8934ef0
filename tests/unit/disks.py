"""Small disks: a folder with a file system of its own, of so many KiB and files."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, *, kib: int, options: str = "") -> Generator[Path]:
    """Skips the test where this may not be done."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    folder.mkdir(exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={kib}k{options}", "none", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
