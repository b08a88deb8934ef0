"""`final/`: the trained model or adapter as the ecosystem loads it, verified before it gets its name.

Tensors are gathered one at a time, so that no rank holds the whole. A clean process then loads the folder with
from_pretrained and compares logits with those of the live model; only after that is the folder renamed to `final/`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import save_file

from shardwise.parallel.mesh import World
from shardwise.parallel.spread import Inputs
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.durable import seal, staged, together
from shardwise.train.export import Files, Result, copy_tokenizer, files_of
from shardwise.train.journal import Journal
from shardwise.train.model import TrainedModel
from shardwise.train.precision import Types, type_name
from shardwise.train.whole import whole_tensors


def save_final(
    model: TrainedModel, *, run: RunDirectory, journal: Journal, probe: torch.Tensor, moved: bool = True
) -> None:
    """Writes, verifies and commits `final/`.

    Args:
        model: what is saved; every rank takes part.
        probe: token ids [1, length] on which live and reloaded logits are compared.
        moved: whether a step could change weights: adapters that did nothing are refused then.

    Raises:
        SaveError: writing failed, or the reloaded folder is not the live model.
    """
    world, result = model.ownership.world, model.result
    journal.enter("saving")
    logits = live_logits(model, probe)
    with staged(world, run.final) as folder:
        files = files_of(result, folder)
        _gather(model, files)

        def complete() -> None:
            files.finish()
            copy_tokenizer(result, folder)
            _write_manifest(folder)

        _first(world, complete, what="writing final/")
        journal.enter("verifying")
        check = _Check(result=result, probe=probe, logits=logits, types=model.types, moved=moved)
        _first(world, lambda: check.run(folder), what="verifying final/")


def _first(world: World, action: Callable[[], None], *, what: str) -> None:
    """Rank 0 acts, all learn whether it worked."""
    together(world, lambda: action() if world.is_first else None, what=what)


def live_logits(model: TrainedModel, probe: torch.Tensor) -> torch.Tensor:
    """Logits of the live model in evaluation mode, float32 on the CPU; every rank takes part."""
    device = model.ownership.world.device
    model.set_training(False)
    length = probe.shape[1]
    ids = F.pad(probe, (0, -length % model.ownership.world.layout.sequence_multiple)).to(device)
    positions = torch.arange(ids.shape[1], device=device).unsqueeze(0)
    logits = model.spread.logits(Inputs(input_ids=ids, position_ids=positions))
    model.set_training(True)
    return logits[:, :length].float().cpu()


def _gather(model: TrainedModel, files: Files) -> None:
    """Brings one parameter after the other together and gives it to rank 0's files.

    A disk that fails on rank 0 does not end the gathering, in which the others take part; all learn of it after.
    """
    failure: list[Exception] = []
    adapters = model.result.adapters is not None
    wanted = [(name, p) for name, p in model.parameters if p.requires_grad or not adapters]
    for name, whole in whole_tensors(wanted, ownership=model.ownership):
        if whole is not None and not failure:
            try:
                files.add(name, whole)
            except (OSError, SafetensorError) as error:
                failure.append(error)

    def report() -> None:
        if failure:
            raise failure[0]

    together(model.ownership.world, report, what="writing final/")


def _write_manifest(folder: Path) -> None:
    """Makes every file durable and records its size and sha256."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    write_json(folder / "manifest.json", {"files": {name: seal(folder / name) for name in names}})


class _Check:
    """The comparison of a saved folder with the live model, by train/check.py in a clean process."""

    def __init__(self, *, result: Result, probe: torch.Tensor, logits: torch.Tensor, types: Types, moved: bool) -> None:
        self._tensors = {"probe": probe, "logits": logits.contiguous()}
        kinds = ("--compute-dtype", type_name(types.compute)), ("--saved-dtype", type_name(result.saved_dtype))
        self._options = [*(word for kind in kinds for word in kind), "--base", str(result.source)]
        self._options += [] if moved else ["--untrained"]

    def run(self, folder: Path) -> None:
        """Checks a folder.

        Raises:
            ValueError: with the check's sentence, if the folder does not hold the live model.
        """
        request = folder / ".probe.safetensors"
        save_file(self._tensors, request)
        code, said = in_clean_process([str(folder), str(request), *self._options])
        request.unlink()
        if code != 0:
            raise ValueError(said or f"the check ended with status {code}")


def in_clean_process(arguments: list[str]) -> tuple[int, str]:
    """Runs train/check.py in an interpreter of its own; its exit status and the last line it said."""
    command = [sys.executable, "-m", "shardwise.train.check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return done.returncode, lines[-1] if lines else ""
