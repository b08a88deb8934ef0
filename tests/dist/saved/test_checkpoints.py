"""An interrupted run ends where the whole one does, and a damaged checkpoint is never loaded."""

import errno
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from shardwise.errors import ModelError
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import RunDirectory, read_metrics, write_json
from shardwise.train.build import Build
from shardwise.train.loop import train
from shardwise.train.saving import checkpoint
from shardwise.train.saving.atomic import SaveError, remove_leftovers
from shardwise.train.saving.checkpoint import create_states
from shardwise.train.saving.checkpoint_reader import Reader, TensorShard, read_manifest, signed
from shardwise.train.watching.journal import Journal
from shardwise.train.watching.watchdog import StopFlag
from tests.dist import cells
from tests.dist.cells import (
    interrupt,
    job_on,
    move,
    outcome,
    prepare_cell,
    resume,
    run_built,
    spread,
    train_cell,
    train_rank,
)
from tests.dist.compare import must_be_the_same, relative
from tests.dist.every_family import make_rows
from tests.dist.tiny import tiny_config
from tests.dist.worlds import add_tokenizer, said_by

LAYOUTS = {
    **{name: spread(cells.LAYOUTS[name]) for name in ("single", "ddp", "fsdp", "hsdp", "tp", "fsdp x tp", "cp")},
    "fsdp4": spread(Layout(dp_shard=4)),
    "zero1": spread(Layout(dp_shard=3, **cells.ZERO1), micros=2),
    "1f1b": spread(Layout(pp=2), micros=2),
    "fsdp x 1f1b": spread(Layout(pp=2, dp_shard=2), micros=2),
    "zero1 x tp": spread(Layout(dp_shard=3, tp=2, **cells.ZERO1), micros=2),
    "fsdp x cp": spread(Layout(dp_shard=2, cp=2)),
}
#: Adapters with all that PEFT can train beside A and B: magnitudes, copies of a tied model's ends.
DORA = {"r": 4, "use_dora": True, "modules_to_save": ["embed_tokens", "lm_head", "norm"]}
METHODS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "dora and dropout": {"method": "lora", "lora": {**DORA, "lora_dropout": 0.2}},
    "qlora": {"method": "qlora"},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_stopped_run_goes_on_bit_for_bit(name, method, make_job, tmp_path) -> None:
    model = "wide" if method == "qlora" else "tied"
    job, chosen = make_job(model, train={"max_steps": 10}, **METHODS[method]), LAYOUTS[name]
    must_be_the_same(train_cell(job, tmp_path / "whole", chosen), move(job, tmp_path / "moved", chosen, chosen, at=4))


def test_a_weight_that_had_no_gradient_has_no_state(tmp_path) -> None:
    """Gemma 3n's code reads one of its matrices past the adapter on it."""
    rows = make_rows(tmp_path / "rows.jsonl")
    AutoModelForCausalLM.from_config(tiny_config("gemma3n_text")).save_pretrained(tmp_path / "model")
    add_tokenizer(tmp_path / "model", rows.read_text().splitlines())
    data = {"path": str(rows), "max_length": 64}
    job = job_on(tmp_path / "model", method="lora", data=data, train={"max_steps": 6})
    before, after = LAYOUTS["single"], LAYOUTS["tp"]
    whole = train_cell(job, tmp_path / "whole", before)
    must_be_the_same(whole, move(job, tmp_path / "alike", before, before, at=3))
    moved = move(job, tmp_path / "moved", before, after, at=3)[0]
    assert relative(whole[0].series("loss"), moved.series("loss")) <= 1e-5


#: Layouts of which each pair is tried with each method; the others with full training.
PAIRED = ("single", "ddp", "fsdp", "tp", "1f1b", "fsdp x 1f1b", "fsdp x tp")
MOVES = [(*pair, method) for method in ("full", "lora", "qlora") for pair in permutations(PAIRED, 2)]
MOVES += [(*pair, "full") for pair in (("fsdp4", "single"), ("ddp", "hsdp"), ("zero1", "ddp"), ("zero1", "fsdp4"))]
MOVES += [(*pair, "full") for pair in (("fsdp", "zero1"), ("zero1 x tp", "fsdp4"), ("fsdp x tp", "zero1 x tp"))]
MOVES += [(*pair, method) for method in ("full", "qlora") for pair in (("cp", "fsdp"), ("fsdp", "cp"))]
MOVES += [(*pair, "lora") for pair in (("fsdp x cp", "tp"), ("1f1b", "fsdp x cp"))]
MOVES += [(*pair, "phi3") for pair in permutations(("single", "tp", "fsdp x tp", "zero1 x tp"), 2)]


@pytest.mark.parametrize(("before", "after", "method"), MOVES)
def test_a_checkpoint_loads_under_another_layout(before, after, method, single, make_job, tmp_path) -> None:
    how = METHODS["dora and dropout"] | {"lora": DORA} if method == "phi3" else {"method": method}
    job = make_job({"qlora": "wide", "phi3": "phi3"}.get(method, "tied"), train={"max_steps": 15}, **how)
    resumed = move(job, tmp_path / "moved", LAYOUTS[before], LAYOUTS[after], at=5)[0]
    assert relative(single(job).series("loss"), resumed.series("loss")) <= 1e-6


def test_a_run_goes_on_to_another_length(make_job, single, tmp_path) -> None:
    short, long = (make_job(train={"max_steps": n, "lr_scheduler_type": "constant"}) for n in (6, 8))
    run = prepare_cell(short, tmp_path / "moved")
    interrupt(run, LAYOUTS["fsdp"], after=5)
    write_json(run.resolved, long.to_json())
    assert relative(single(long).series("loss"), resume(run, LAYOUTS["single"], at=5)[0].series("loss")) <= 1e-5


@pytest.mark.parametrize("asked", [4, 6])
def test_an_evaluation_a_stop_left_out_stays_out_and_the_next_is_at_its_step(asked, make_job, rows, tmp_path) -> None:
    """A stop in the last step ends the run: what is trained is whole."""
    job = make_job(train={"max_steps": 6, "eval_steps": 2}, data={"eval_path": str(rows["eval"])})
    whole, run = prepare_cell(job, tmp_path / "whole"), prepare_cell(job, tmp_path / "stopped")
    run_built(train_rank, whole, LAYOUTS["single"])
    interrupt(run, LAYOUTS["fsdp"], after=asked, signal=15 if asked < 6 else 0)
    assert f"the evaluation after step {asked} was left out: the run was asked to stop" in run.notices.read_text()
    if asked < 6:
        resume(run, LAYOUTS["single"], at=asked)
    expected, found = (
        {record["step"]: record["eval_loss"] for record in read_metrics(each) if "eval_loss" in record}
        for each in (whole, run)
    )
    assert list(found) == [step for step in (2, 4, 6) if step != asked]
    assert relative([expected[step] for step in found], list(found.values())) <= 1e-5


def _save_at(built: Build, steps: list[int], larger: float = 0.0) -> None:
    """Saves the weights that the run began with, or `larger` ones."""
    create_states(built.optimizer)
    with torch.no_grad():
        for _, parameter in built.model.trained:
            parameter.add_(larger)
    for step in steps:
        assert built.checkpoints.save(step)


def _restored(built: Build, *seen: list[RunDirectory]) -> list[int]:
    """What is loaded of a run, or of each of its copies, of which every rank has its own view."""
    checkpoints = built.checkpoints
    views = [checkpoints.run, *[each[checkpoints.world.rank] for each in seen]]
    return [replace(checkpoints, run=view).restore() for view in views[bool(seen) :]]


@pytest.fixture
def saved(make_job: Callable[..., Job], tmp_path: Path) -> RunDirectory:
    """A run directory with checkpoints 3 and 5 of a two-rank sharded run."""
    run = prepare_cell(make_job(), tmp_path / "run")
    run_built(_save_at, run, LAYOUTS["fsdp"], [3, 5])
    return run


def _flip_bit(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def _point_outside(folder: Path) -> None:
    manifest = read_manifest(folder)
    manifest["files"]["../checkpoint-3/rank-00000.safetensors"] = {"size": 1, "sha256": ""}
    (folder / "manifest.json").write_text(json.dumps(signed(manifest)))


def _change_digit(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    changed = text.replace('"offsets": [\n            0', '"offsets": [\n            1', 1)
    assert changed != text
    (folder / "manifest.json").write_text(changed)


#: What is done to checkpoint-5, and why it is not loaded.
DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda at: _flip_bit(at, "rank-00001.safetensors"), "rank-00001.safetensors is not what was written: its"),
    (lambda at: (at / "rank-00000.safetensors").write_bytes(b"short"), "rank-00000.safetensors has 5 bytes, and"),
    (lambda at: (at / "rank-00001.safetensors").unlink(), "rank-00001.safetensors is missing"),
    (lambda at: (at / "manifest.json").write_text("{"), "its manifest cannot be read: Expecting property name"),
    (lambda at: (at / "manifest.json").write_text('{"format_version": 99}'), "format version 99; this program"),
    (_point_outside, "names '../checkpoint-3/rank-00000.safetensors', which is not a plain file name"),
    (_change_digit, "it is not what was written (its sha256 differs)"),
    (lambda at: shutil.copy(at.with_name("checkpoint-3") / "manifest.json", at), "it is of step 3"),
]


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(saved, tmp_path) -> None:
    copies = [RunDirectory(Path(shutil.copytree(saved.root, tmp_path / str(number)))) for number in range(9)]
    for copy, (damage, _) in zip(copies, DAMAGE, strict=False):
        damage(copy.checkpoint(5))
    (copies[-1].checkpoint(5) / "manifest.json").unlink()
    assert run_built(_restored, saved, LAYOUTS["fsdp"], *[[copy, copy] for copy in copies]) == [[3] * 9] * 2
    *damaged, unfinished = saved.notices.read_text().splitlines()
    assert "checkpoint-5 is unfinished (it has no manifest.json) and is skipped" in unfinished
    for said, (_, fault) in zip(damaged, DAMAGE, strict=True):
        assert "checkpoint-5 cannot be loaded and is skipped: " in said and fault in said


def _restored_from_a_bad_disk(built: Build) -> list[int]:
    """Rank 1 cannot read the newest checkpoint."""
    opened = Path.open

    def fails(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.suffix == ".safetensors" and path.parent.name == "checkpoint-5" and torch.distributed.get_rank() == 1:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *args, **kwargs)

    with patch.object(Path, "open", fails):
        return _restored(built)


def test_a_checkpoint_that_one_rank_cannot_read_is_skipped_for_the_one_before(saved) -> None:
    assert run_built(_restored_from_a_bad_disk, saved, LAYOUTS["fsdp"]) == [[3], [3]]
    said = "checkpoint-5 cannot be loaded and is skipped: rank-00001.safetensors cannot be read: Input/output error"
    assert said in saved.notices.read_text()


def test_old_checkpoints_are_pruned_after_the_new_one_is_committed(saved) -> None:
    run_built(_save_at, saved, LAYOUTS["fsdp"], [8])
    assert [step for step, _ in saved.checkpoints()] == [8, 5]
    names = sorted(path.name for path in saved.checkpoint(5).iterdir())
    assert names == ["manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"], "none of them is a pickle"


def _resume_and_save(built: Build, step: int) -> int:
    checkpoints = replace(built.checkpoints, keep=1)
    start = checkpoints.restore()
    assert checkpoints.save(step)
    return start


def test_pruning_never_keeps_a_damaged_checkpoint_over_a_whole_one(saved) -> None:
    _flip_bit(saved.checkpoint(5), "rank-00000.safetensors")
    assert run_built(_resume_and_save, saved, LAYOUTS["fsdp"], 4) == [3, 3]
    assert [step for step, _ in saved.checkpoints()] == [4]


def test_a_run_killed_between_the_renames_gets_the_old_folder_back(tmp_path) -> None:
    for name in (".final.replaced", ".final.abcd1234"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final"]


def _write_while_training(built: Build) -> dict[int, list[int]]:
    """Trains where rank 0 writes checkpoint-2 behind step 4; the checkpoints after each step."""
    run, real = built.checkpoints.run, checkpoint.write_tensors
    seen, go = dict[int, list[int]](), threading.Event()

    def slow(path: Path, tensors: Any) -> Any:
        assert not built.world.is_first or go.wait(60)
        return real(path, tensors)

    class Watching(Journal):
        def stepped(self, step: int) -> None:
            super().stepped(step)
            seen[step] = [saved for saved, _ in run.checkpoints()]
            if step == 4:
                go.set()

    with patch.object(checkpoint, "write_tensors", slow):
        train(built, start=0, journal=Watching(run=run, rank=built.world.rank), stop=StopFlag())
    return seen


def test_training_goes_on_while_a_checkpoint_is_written_which_is_of_the_step_it_names(make_job, tmp_path) -> None:
    job = make_job(train={"max_steps": 6, "save_steps": 2, "save_total_limit": None})
    slow, plain = (prepare_cell(job, tmp_path / name) for name in ("slow", "plain"))
    seen = run_built(_write_while_training, slow, LAYOUTS["fsdp"])[0]
    assert (seen[3], seen[4]) == ([], []), "steps 3 and 4 did not wait for the disk"
    assert [step for step, _ in slow.checkpoints()] == [6, 4, 2]
    run_built(train_rank, plain, LAYOUTS["fsdp"])
    for file in (f"rank-0000{rank}.safetensors" for rank in range(2)):
        one, other = (load_file(run.checkpoint(2) / file) for run in (slow, plain))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_checkpoint_of_another_model_of_that_name_is_refused_by_its_file(method, make_job, models, tmp_path) -> None:
    """An adapter would go on over weights that it was not trained on."""
    folder = Path(shutil.copytree(models["untied"], tmp_path / "model"))
    run = prepare_cell(make_job(folder, method=method), tmp_path / "run")
    run_built(_save_at, run, LAYOUTS["fsdp"], [2])
    (folder / "generation_config.json").write_text('{"max_new_tokens": 7}')
    assert run_built(_restored, run, LAYOUTS["single"]) == [[2]], "nothing is trained by it"
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 3] += 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (said,) = run_built(partial(said_by, ModelError, _restored), run, LAYOUTS["single"])
    assert "model.safetensors of this model is another file than" in said
    assert said.startswith(f"{run.resolved}:"), said


def _save_elsewhere(built: Build, places: list[Path]) -> bool:
    """Each rank finds a folder of its own under the run directory's name."""
    create_states(built.optimizer)
    return replace(built.checkpoints, run=RunDirectory(places[built.world.rank])).save(3)


def test_a_checkpoint_whose_files_lie_on_other_machines_is_not_committed(make_job, tmp_path) -> None:
    run, other = prepare_cell(make_job(), tmp_path / "run"), tmp_path / "other"
    other.mkdir()
    assert run_built(_save_elsewhere, run, LAYOUTS["fsdp"], [run.root, other]) == [False] * 2
    assert run.checkpoints() == [*other.rglob("manifest.json")] == []
    said = run.notices.read_text()
    assert "checkpoint-3 was not saved: writing a manifest failed on rank 0: " in said
    assert "rank-00001.safetensors, which another rank wrote, is not here as it was written; " in said
    assert f"all ranks must share {run.root}" in said


def test_a_save_that_fails_on_the_disk_is_reported_and_leaves_nothing(saved) -> None:
    (saved.root / "metrics.jsonl").write_text("")
    nowhere = saved.root / "metrics.jsonl" / "below-a-file"
    assert run_built(_save_elsewhere, saved, LAYOUTS["fsdp"], [nowhere] * 2) == [False, False]
    assert "was not saved: " in saved.notices.read_text()
    assert not list(saved.root.glob(".checkpoint*"))


def _fails_to_load(built: Build, broken: list[int]) -> tuple[int | str, dict[str, Any]]:
    """Rank 1's disk fails in the middle of some; what ranks start from, or why they do not."""
    real, calls = Reader.fill, list[str]()

    def fill(reader: Reader, target: TensorShard) -> None:
        calls.append(target.name)
        at = int(reader.folder.name.removeprefix("checkpoint-"))
        if built.world.rank == 1 and at in broken and len(calls) > 3:
            raise OSError(5, "Input/output error")
        real(reader, target)

    with patch.object(Reader, "fill", fill):
        try:
            return built.checkpoints.restore(), outcome(built).weights
        except SaveError as error:
            return str(error), {}


def test_a_checkpoint_that_fails_half_way_leaves_nothing_behind_where_an_older_one_loads(saved) -> None:
    shutil.rmtree(saved.checkpoint(5))
    expected = run_built(_fails_to_load, saved, LAYOUTS["fsdp"], [])
    run_built(_save_at, saved, LAYOUTS["fsdp"], [5], 1.0)
    found = run_built(_fails_to_load, saved, LAYOUTS["fsdp"], [5])
    for (start, weights), (_, wanted) in zip(found, expected, strict=True):
        assert start == 3
        assert all(torch.equal(weights[name], weight) for name, weight in wanted.items())
    said = "checkpoint-5 cannot be loaded and is skipped: loading checkpoint-5 failed on rank 1: OSError: "
    assert said in saved.notices.read_text()


def test_weights_that_a_failed_load_left_behind_are_not_trained_from_step_0(saved) -> None:
    failed = "loading checkpoint-{0} failed on rank 1: OSError: [Errno 5] Input/output error"
    each = "; ".join(f"checkpoint-{step}: {failed.format(step)}" for step in (5, 3))
    for said, _ in run_built(_fails_to_load, saved, LAYOUTS["fsdp"], [3, 5]):
        assert said == (
            f"no checkpoint of {saved.root} can be loaded, and training does not begin anew over them ({each}). "
            "Put back what is missing and run the same command again, or remove "
            f"{saved.root}/checkpoint-* to train from the beginning"
        )


def test_a_run_whose_checkpoints_are_all_damaged_goes_on_when_what_is_missing_comes_back(saved) -> None:
    for step in (3, 5):
        (saved.checkpoint(step) / "rank-00001.safetensors").rename(saved.root / f"away-{step}")
    for said, _ in run_built(_fails_to_load, saved, LAYOUTS["fsdp"], []):
        assert "rank-00001.safetensors is missing" in str(said)
    (saved.root / "away-3").rename(saved.checkpoint(3) / "rank-00001.safetensors")
    assert run_built(_restored, saved, LAYOUTS["fsdp"]) == [[3], [3]]


def test_ranks_that_see_other_checkpoints_load_the_same_one(saved, tmp_path) -> None:
    """As caches of a network's file system may show them."""
    other = RunDirectory(Path(shutil.copytree(saved.root, tmp_path / "as another rank sees it")))
    shutil.rmtree(other.checkpoint(5))
    assert run_built(_restored, saved, LAYOUTS["fsdp"], [other, saved], [saved, other]) == [[3, 3]] * 2
    (said,) = saved.notices.read_text().splitlines()
    assert f"rank 1 does not see {other.checkpoint(5)}; is it on a disk that all ranks share?" in said


def _draws(built: Build, resumes: bool) -> list[float]:
    """What the first step of a start draws."""
    assert not resumes or built.checkpoints.restore() == 3
    return torch.rand(4).tolist()


@pytest.mark.parametrize(
    ("before", "after", "alike"), [("ddp", "tp", True), ("tp", "ddp", False), ("single", "fsdp", False)]
)
def test_on_another_layout_ranks_draw_alike_where_they_must_and_anew(before, after, alike, make_job, tmp_path) -> None:
    run = prepare_cell(make_job(), tmp_path)
    run_built(_save_at, run, LAYOUTS[before], [3])
    first = run_built(_draws, run, LAYOUTS[after], False)
    one, other = run_built(_draws, run, LAYOUTS[after], True)
    assert (one == other) == alike
    assert one not in first
    assert other not in first
