"""A file written tensor by tensor is what safetensors reads; folders appear whole or not at all."""

import hashlib
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shardwise.train.saving import atomic as durable
from shardwise.train.saving import safetensors_writer
from shardwise.train.saving.safetensors_writer import Entry, TensorFile, write_tensors

TENSORS = {
    "bytes": torch.arange(5, dtype=torch.uint8),
    "weight": torch.randn(3, 4),
    "half": torch.randn(7).bfloat16(),
    "step": torch.tensor(3.0),
    "turned": torch.randn(4, 3).T,
    "counts": torch.arange(3),
    "nothing": torch.empty(0, 4),
}


def recorded(path: Path) -> dict[str, object]:
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_it_is_read_back_bit_for_bit_and_recorded(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    record = write_tensors(path, TENSORS)
    found = load_file(path)
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
    with pytest.raises(ValueError, match="some ends before a"):
        TensorFile(tmp_path / "some", expected).close()
    file = TensorFile(tmp_path / "some", expected)
    with pytest.raises(ValueError, match=r"a has the shape \(3,\); expected a of shape \(2,\)"):
        file.add("a", torch.zeros(3))
    file.abandon()


def test_a_disk_that_is_full_is_heard_of(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "some").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_tensors(tmp_path / "some", {"a": torch.zeros(100_000)})


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
    with pytest.raises(OSError, match="Input/output error"):
        file.close()


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
    with pytest.raises(OSError, match="Input/output error"):
        durable.commit(fresh, target)
    assert (target / "inner" / "file").read_text() == "old"
