"""Writes `final/`, the trained model or adapter in Hugging Face's format.

Tensors are gathered one at a time. Files are compared with the live weights before a rename.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist

from shardwise.models.wrapper import auto_class
from shardwise.parallel.mesh import World
from shardwise.spec.job.file import read_job
from shardwise.spec.result import ADAPTER_CONFIG, CARD, MANIFEST, keep_what_a_person_put, settings_of
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.guards.checks import gather
from shardwise.train.model import TrainedModel
from shardwise.train.saving.atomic import commit_stage, open_stage, removed_on_error, seal, together
from shardwise.train.saving.background import serial_operators
from shardwise.train.saving.card import base_name, model_card
from shardwise.train.saving.check import Compared, compare, folder_faults, warnings_of
from shardwise.train.saving.export import Files, copy_configuration, wanted_tensors, whole_tensors
from shardwise.train.watching.journal import Journal

#: How long a rank whose gathering failed waits for it to fail on the others too.
_MEETING = timedelta(seconds=30)


def save_final(model: TrainedModel, *, run: RunDirectory, journal: Journal, trained: bool = True) -> None:
    """Writes, checks and commits `final/` with all ranks; raises SaveError on failure. `trained`:
    some step had a learning rate above zero; then adapters that change nothing get a warning."""
    journal.enter("saving")
    base, is_local = base_name(read_job(run.resolved).model)
    loader: str = auto_class(cast(Any, model.result.model).config).__name__

    def describe(folder: Path) -> None:
        experts = model.result.quantised_experts
        card = model_card(run, base=base, is_local=is_local, loader=loader, experts=experts)
        (folder / CARD).write_text(card, encoding="utf-8")

    compared = save_folder(model, run.final, verifying=lambda: journal.enter("verifying"), describe=describe)
    for sentence in warnings_of(gather(model.ownership.world, compared), trained=trained):
        journal.warn(f"final/ holds what was trained, but {sentence}")


def save_folder(
    model: TrainedModel,
    target: Path,
    *,
    verifying: Callable[[], None] = lambda: None,
    describe: Callable[[Path], None] = lambda _: None,
) -> Compared:
    """Writes, checks and commits a folder `from_pretrained` reads, with all ranks. `verifying`:
    called between; `describe`: writes the card. Returns this rank's check, or raises SaveError."""
    world, result = model.ownership.world, model.result
    with removed_on_error(open_stage(world, target)) as folder:
        records = _write(model, folder)

        def complete() -> None:
            said = {"source": model.content, "stops": copy_configuration(result, folder)}
            if result.local_base is not None:
                said["base"] = result.local_base
            describe(folder)
            write_manifest(folder, target, records=records, said=said)

        size = sum(record["size"] for record in records.values())
        what = f"writing {target.name}/"
        together(world, lambda: complete() if world.is_first else None, what=what, into=folder, size=size)
        verifying()
        compared = check_folder(model, folder)
        commit_stage(world, folder, target)
        return compared


def write_manifest(folder: Path, target: Path, *, records: dict[str, Any], said: dict[str, Any]) -> list[str]:
    """Keeps what a person put into the target, syncs the rest and writes the manifest: what is
    `said`, and of each file size and sha256, as in `records`. Returns what was kept."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    kept = keep_what_a_person_put(target, folder)
    files = {name: records.get(name) or seal(folder / name) for name in sorted(names - set(kept) - {CARD})}
    if (adapter := files.get(ADAPTER_CONFIG)) is not None:
        adapter["settings"] = settings_of(folder / ADAPTER_CONFIG)
    card = {"card": seal(folder / CARD)} if CARD in names and CARD not in kept else {}
    write_json(folder / MANIFEST, {"files": files, **card, **said})
    return kept


def _write(model: TrainedModel, folder: Path) -> dict[str, Any]:
    """Gathers tensor after tensor and writes them on rank 0; size and sha256 of each file. A
    failing disk does not end the gathering, in which other ranks take part; all learn of it
    afterwards. Raises as the gathering does where others still wait in it."""
    world, result = model.ownership.world, model.result
    wanted = wanted_tensors(result, ownership=model.ownership)
    files, failures = Files(folder, result, wanted), list[Exception]()

    def fails(error: Exception) -> None:
        failures.append(error)
        files.abandon()

    tensors = whole_tensors(wanted, result, ownership=model.ownership)
    with serial_operators():
        try:
            for name, whole in tensors:
                if whole is not None and not failures:
                    try:
                        files.add(name, whole)
                    except Exception as error:  # noqa: BLE001  # raised again, when all have been gathered
                        fails(error)
        except Exception as error:  # noqa: BLE001  # likewise
            _met_others(world, error)
            fails(error)

        def finish() -> dict[str, Any]:
            if failures:
                raise failures[0]
            return files.finish() if world.is_first else {}

        return together(world, finish, what="writing final/", into=folder, size=files.size)


def _met_others(world: World, error: Exception) -> None:
    """Raises unless gathering ended on every rank: one that is still in it can save nothing."""
    try:
        meeting: Any = dist.barrier(world.control, async_op=True)
        meeting.wait(_MEETING)
    except RuntimeError:
        raise error from None


def check_folder(model: TrainedModel, folder: Path) -> Compared:
    """What this rank's check found. Raises SaveError: files are not the live weights."""
    world, result = model.ownership.world, model.result

    def check() -> Compared:
        compared = compare(folder, result, ownership=model.ownership)
        faults = (folder_faults(folder, result) if world.is_first else []) + compared.faults
        if faults:
            raise ValueError(f"the saved folder is not the trained model: {'; '.join(faults[:3])}")
        return compared

    return together(world, check, what="checking final/")
