"""Folders that appear whole or not at all."""

from pathlib import Path

import pytest

from shardwise.train.saving import atomic as durable


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
