"""`export`: a plan in the words of another launcher or trainer"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardwise.api.plans.for_target import targets_to_plan_for
from shardwise.api.plans.planning import plan, written_to
from shardwise.errors import InputError, UnsupportedError
from shardwise.interop.chosen import Chosen, Exported
from shardwise.interop.targets import TARGETS
from shardwise.plan import bytes_on_host
from shardwise.spec.plan.file import read_plan
from shardwise.spec.plan.forecast import Plan
from shardwise.spec.request import Override, is_plan
from shardwise.spec.run import write_text


def export(job: str | Path, *, to: str, overrides: Sequence[str | Override] = ()) -> Exported:
    """What a target needs to run a plan.

    Args:
        job: a plan.json, or a job file, which is planned first, for the target where its memory is
            known.
        to: a name of `TARGETS`.
        overrides: `key.path=value` as after `--set`; of a job file.

    Raises:
        InputError: there is no such target, or the job cannot be planned.
        UnsupportedError: the target would train something else; every reason is named.
    """
    if to not in TARGETS:
        raise InputError(f"--to {to}: there is no such target; write one of {', '.join(TARGETS)}")
    if not is_plan(job):
        try:
            chosen = plan(job, overrides=overrides, target=to if to in targets_to_plan_for() else None)
        except UnsupportedError as error:
            told = [replace(one, where=str(job)) if one.where == "--for" else one for one in error.problems]
            raise UnsupportedError(told) from None
    elif overrides:
        raise InputError("--set changes a job, and this is a plan; set it in `shardwise plan`, or export the job file")
    else:
        chosen = read_plan(job)
    return export_plan(chosen, to=to, path=str(job), sets=[Override.of(one).text for one in overrides])


def export_plan(chosen: Plan, *, to: str, path: str, sets: Sequence[str] = ()) -> Exported:
    """Likewise, of a plan that is made; `path`: the file that it, or its job, is saved as; `sets`:
    what `--set` said of the job."""
    if chosen.best is not None and chosen.best.not_trained and to in ("torchrun", "slurm", "kubernetes", "skypilot"):
        raise UnsupportedError(f"{path}: {'; '.join(chosen.best.not_trained)}")
    try:
        known = replace(Chosen.of(chosen, path=path), host_bytes=bytes_on_host(chosen), sets=tuple(sets))
    except (KeyError, TypeError, ValueError):
        message = "its `model` or `hardware` is not as a plan has it; write it anew with `shardwise plan --output`"
        raise InputError(f"{path}: {message}") from None
    return TARGETS[to].write(known)


def write_export(exported: Exported, folder: str | Path) -> list[Path]:
    """Writes the files into a folder; InputError if they cannot be written. Returns their paths."""
    paths = [Path(folder) / name for name in exported.files]
    with written_to(folder, what="folder"):
        for path, text in zip(paths, exported.files.values(), strict=True):
            write_text(path, text)
    return paths
