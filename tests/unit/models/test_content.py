"""A model folder's content as hashes: what tells two folders apart, and what does not."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardwise.models import content
from shardwise.models.content import BLOCK_BYTES, folder_content

WEIGHTS = "model.safetensors"
ROWS, COLUMNS = 256, 64
#: Of float32 elements.
BLOCK = BLOCK_BYTES // 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two matrices of 16 blocks each, and a norm that is smaller than a block."""
    made = tmp_path / "model"
    made.mkdir()
    for name in ("config.json", "tokenizer.json", "README.md"):
        (made / name).write_text("{}")
    tensors = {name: torch.zeros(ROWS, COLUMNS) for name in ("first", "second")}
    save_file(tensors | {"norm": torch.ones(COLUMNS)}, made / WEIGHTS)
    return made


def _differing(folder: Path, change: Callable[[Path], object]) -> set[str]:
    """Names of the files whose hashes a change of a copy makes others."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    change(other)
    one, two = (folder_content(where, weights=[WEIGHTS]) for where in (folder, other))
    return {name for name in one | two if one.get(name) != two.get(name)}


def _set(name: str, place: int) -> Callable[[Path], object]:
    """Changes one element of a tensor; the file keeps its size and its header."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        tensors[name].view(-1)[place] = 0.5
        save_file(tensors, folder / WEIGHTS)

    return change


LAST = ROWS * COLUMNS - 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_set("first", 0), WEIGHTS),
        (_set("second", LAST // 2), WEIGHTS),
        (_set("second", LAST), WEIGHTS),
        (_set("norm", 7), WEIGHTS),
        (lambda other: (other / "config.json").write_text("[]"), "config.json"),
        (lambda other: (other / "generation_config.json").write_text("{}"), "generation_config.json"),
        (lambda other: (other / "tokenizer.json").unlink(), "tokenizer.json"),
    ],
)
def test_a_file_that_differs_has_another_hash_and_weights_do_where_they_are_sampled(
    folder: Path, change: Callable[[Path], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "WHOLE_BYTES", (folder / WEIGHTS).stat().st_size - 1)
    assert _differing(folder, change) == {name}
