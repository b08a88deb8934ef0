"""`export`: a plan in the words of another launcher or trainer"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwise.api.planning import plan, written_to
from shardwise.errors import InputError, UnsupportedError
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.targets import TARGETS
from shardwise.spec.plan.file import read_plan
from shardwise.spec.request import Override, is_plan
from shardwise.spec.run import write_text


def export(job: str | Path, *, to: str, overrides: Sequence[str | Override] = ()) -> Exported:
    """What a target needs to run a plan.

    Args:
        job: a plan.json, or a job file, which is planned first.
        to: a name of `TARGETS`.
        overrides: `key.path=value` as after `--set`; of a job file.

    Raises:
        InputError: there is no such target, or the job cannot be planned.
        UnsupportedError: the target would train something else; every reason is named.
    """
    if to not in TARGETS:
        raise InputError(f"--to {to}: there is no such target; write one of {', '.join(TARGETS)}")
    if not is_plan(job):
        chosen = plan(job, overrides=overrides)
    elif overrides:
        raise InputError("--set changes a job, and this is a plan; set it in `shardwise plan`, or export the job file")
    else:
        chosen = read_plan(job)
    if chosen.best is not None and chosen.best.not_trained and to in ("torchrun", "slurm", "kubernetes", "skypilot"):
        raise UnsupportedError(f"{job}: {'; '.join(chosen.best.not_trained)}")
    return TARGETS[to](Chosen.of(chosen, path=str(job)))


def write_export(exported: Exported, folder: str | Path) -> list[Path]:
    """Writes the files into a folder; InputError if they cannot be written. Returns their paths."""
    paths = [Path(folder) / name for name in exported.files]
    with written_to(folder):
        for path, text in zip(paths, exported.files.values(), strict=True):
            write_text(path, text)
    return paths
