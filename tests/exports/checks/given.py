"""The cases that a check is given as arguments."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

#: Steps of a job that states epochs: two over 64 rows in batches of 16.
STEPS_OF_EPOCHS = 2 * 64 // 16


def read_yaml(path: Path) -> Any:
    """What a file of YAML holds."""
    return yaml.safe_load(path.read_text())


def cases() -> Iterator[tuple[Path, dict[str, Any], int]]:
    """Folder, job and number of steps of each."""
    for folder in map(Path, sys.argv[1:]):
        job = read_yaml(folder / "job.yaml")
        yield folder, job, job["train"]["max_steps"] or STEPS_OF_EPOCHS
