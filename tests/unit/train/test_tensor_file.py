"""Files of weights: written as safetensors reads them, whole or not at all, and compared."""

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardwise.programs.difference import main
from shardwise.train.saving import atomic as durable
from shardwise.train.saving import safetensors_writer
from shardwise.train.saving.difference import TensorDifference, difference
from shardwise.train.saving.safetensors_writer import Entry, TensorFile, write_tensors
from tests.refusals import must_refuse

TENSORS = {"bytes": torch.arange(5, dtype=torch.uint8), "weight": torch.randn(3, 4), "half": torch.randn(7).bfloat16()}
TENSORS |= {"step": torch.tensor(3.0), "turned": torch.randn(4, 3).T, "counts": torch.arange(3)}
TENSORS |= {"nothing": torch.empty(0, 4)}
Tensors = dict[str, torch.Tensor]


def recorded(path: Path) -> dict[str, object]:
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_it_is_read_back_bit_for_bit_and_recorded(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    record, found = write_tensors(path, TENSORS), load_file(path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert record == recorded(path)


def test_a_tensor_is_cast_by_parts_while_it_is_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(safetensors_writer, "_AT_ONCE", 7)
    path, tensor = tmp_path / "some", torch.randn(11, 3).T
    file = TensorFile(path, {"a": Entry(dtype=torch.bfloat16, shape=(3, 11))})
    file.add("a", tensor)
    record = file.close()
    assert torch.equal(load_file(path)["a"], tensor.bfloat16())
    assert record == recorded(path)


def test_a_tensor_that_is_not_the_next_one_and_a_file_that_lacks_one_are_refused(tmp_path: Path) -> None:
    expected = {"a": Entry(dtype=torch.float32, shape=(2,))}
    must_refuse(ValueError, "some ends before a", TensorFile(tmp_path / "some", expected).close)
    file = TensorFile(tmp_path / "some", expected)
    must_refuse(ValueError, r"a has the shape \(3,\); expected a of shape \(2,\)", file.add, "a", torch.zeros(3))
    file.abandon()


def test_a_disk_that_is_full_is_heard_of(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "some").symlink_to("/dev/full")
    must_refuse(OSError, "No space left", write_tensors, tmp_path / "some", {"a": torch.zeros(100_000)})


def test_the_disk_writes_while_more_comes_and_what_it_says_then_is_heard(tmp_path: Path, monkeypatch) -> None:
    """A system tells of a failed write once, in the first sync behind it."""
    synced, real = threading.Event(), os.fsync

    def fails_once(descriptor: int) -> None:
        if not synced.is_set():
            synced.set()
            raise OSError(5, "Input/output error")
        real(descriptor)

    monkeypatch.setattr(safetensors_writer, "_SYNCED_BYTES", 100)
    monkeypatch.setattr(os, "fsync", fails_once)
    file = TensorFile(tmp_path / "some", {"a": Entry(dtype=torch.float32, shape=(50,))})
    file.add("a", torch.zeros(50))
    assert synced.wait(timeout=30), "the file is not closed yet"
    must_refuse(OSError, "Input/output error", file.close)


def folders(tmp_path: Path) -> tuple[Path, Path]:
    fresh, target = tmp_path / ".final.fresh", tmp_path / "final"
    for folder, said in ((fresh, "new"), (target, "old")):
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "file").write_text(said)
    return fresh, target


def test_a_commit_replaces_the_target_and_makes_every_folder_in_it_durable(tmp_path, monkeypatch) -> None:
    fresh, target = folders(tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    durable.commit(fresh, target)
    assert (target / "inner" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert synced == [fresh / "inner", fresh, tmp_path]


def test_a_commit_that_fails_behind_its_first_rename_leaves_the_target_as_it_was(tmp_path, monkeypatch) -> None:
    fresh, target = folders(tmp_path)
    real = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if self == fresh:
            raise OSError(5, "Input/output error")
        return real(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    must_refuse(OSError, "Input/output error", durable.commit, fresh, target)
    assert (target / "inner" / "file").read_text() == "old"


def folder(path: Path, *files: Tensors) -> Path:
    path.mkdir()
    for index, tensors in enumerate(files):
        save_file(tensors, path / f"part-{index}.safetensors")
    return path


def tensors(dtype: torch.dtype = torch.float32) -> Tensors:
    torch.manual_seed(0)
    return {name: torch.randn(8, 4).to(dtype) for name in ("a.weight", "b.weight", "c.weight")}


def compared(tmp_path: Path, found: Tensors, *, dtype: torch.dtype = torch.float32) -> TensorDifference:
    return difference(folder(tmp_path / "a", tensors(dtype)), folder(tmp_path / "b", found), tolerance=1e-5)


def test_less_than_the_floor_is_told_and_excused(tmp_path: Path) -> None:
    """A tensor that is nothing but rounding is as far from another as it is large."""
    one, other = ({**tensors(), "d.bias": torch.full((4,), value)} for value in (1e-9, -1e-9))
    a, b = folder(tmp_path / "a", one), folder(tmp_path / "b", other)
    assert difference(a, b, tolerance=1e-5).first == "d.bias"
    found = difference(a, b, tolerance=1e-5, floor=5e-9)
    assert (found.first, found.worst, found.relative, found.absolute) == (None, None, 0.0, 0.0)
    told = (found.excused.name, found.excused.relative, found.excused.absolute)
    assert told == ("d.bias", pytest.approx(2.0), pytest.approx(2e-9))
    assert difference(a, b, tolerance=1e-5, floor=3e-9).first == "d.bias"


def test_the_first_tensor_that_differs_is_named(tmp_path: Path) -> None:
    changed = tensors()
    changed["c.weight"] += 1.0
    changed["b.weight"][3, 2] += 0.5
    found = compared(tmp_path, changed)
    assert (found.first, found.worst) == ("b.weight", "c.weight")
    assert found.absolute == pytest.approx(1.0, abs=1e-6) and found.reason.startswith("differs by ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda found: found.pop("b.weight"), "is missing in"),
        (lambda found: found.update({"b.weight": torch.zeros(4, 8)}), "is float32 [8, 4] in"),
        (lambda found: found.update({"b.weight": found["b.weight"].half()}), "and float16 [8, 4] in"),
        (lambda found: found["b.weight"].fill_(float("nan")), "differs by"),
    ],
    ids=["missing", "shape", "type", "not a number"],
)
def test_what_cannot_be_compared_differs(change: object, reason: str, tmp_path: Path) -> None:
    changed = tensors()
    change(changed)  # type: ignore[operator]
    found = compared(tmp_path, changed)
    assert found.first == "b.weight"
    assert reason in (found.reason or "")


def test_a_short_type_may_round_to_its_neighbour_but_not_farther(tmp_path: Path) -> None:
    near = {name: t * (1 + 2**-8) for name, t in tensors(torch.bfloat16).items()}
    assert compared(tmp_path, near, dtype=torch.bfloat16).first is None
    far = {name: t * (1 + 2**-5) for name, t in tensors(torch.bfloat16).items()}
    assert difference(tmp_path / "a", folder(tmp_path / "c", far), tolerance=1e-5).first == "a.weight"


def test_the_program_prints_json_or_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"a": str(one := folder(tmp_path / "a", tensors())), "tolerance": 1e-7}
    assert main(json.dumps({**asked, "b": str(one)})) == 0
    assert json.loads(capsys.readouterr().out)["num_tensors"] == 3
    empty = folder(tmp_path / "b")
    assert main(json.dumps({**asked, "b": str(empty)})) == 2
    assert capsys.readouterr().err == f"the weights cannot be compared: {empty} holds no safetensors\n"
    (empty / "model.safetensors").write_bytes(b"nonsense")
    assert main(json.dumps({**asked, "b": str(empty)})) == 2
    assert "cannot be compared" in capsys.readouterr().err
