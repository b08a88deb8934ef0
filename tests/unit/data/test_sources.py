"""Which files of a folder are read: splits, metadata, and what other programs leave there."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwise.data.read.sources import Source, find_sources
from shardwise.errors import DataError
from shardwise.spec.job.data import SourceSpec
from shardwise.spec.job.places import Places
from tests.refusals import must_refuse
from tests.unit.data.helpers import prepared, write_jsonl


def made(folder: Path, *names: str) -> Path:
    for name in names:
        write_jsonl(folder / name, [{"text": "the cat"}])
    return folder


def found(folder: Path, **spec: Any) -> Source:
    def fetch(_: SourceSpec) -> tuple[Path, str]:
        raise AssertionError("nothing is fetched")

    source = SourceSpec(path=str(folder), **spec)
    return find_sources([source], fetch=fetch, key="path", places=Places(by_key={}, file="job.yaml"))[0]


def names(source: Source, folder: Path) -> list[str]:
    return [str(Path(file.path).relative_to(folder.resolve())) for file in source.files]


#: Files of a folder, by split. All are as `datasets` has them.
FOLDERS: list[dict[str, list[str]]] = [
    {"train": ["train-1.jsonl", "train-2.jsonl"], "validation": ["validation-1.jsonl"], "test": ["test-1.jsonl"]},
    {"train": ["my.training.jsonl"], "validation": ["dev.jsonl"], "test": ["eval_set.jsonl"]},
    {"train": ["main/train/b.jsonl", "main/train/test-a.jsonl"], "validation": ["main/val/a.jsonl"]},
    {name: [f"data/{name}-00000-of-00001.jsonl"] for name in ("train_sft", "train_gen", "test_sft")},
]


@pytest.mark.parametrize("splits", FOLDERS)
def test_files_of_a_folder_are_of_the_split_that_their_names_say_as_datasets_has_it(tmp_path, splits) -> None:
    patterns = pytest.importorskip("datasets.data_files", reason="the optional extra `hub` is not installed")
    folder = made(tmp_path / "set", *(file for files in splits.values() for file in files))
    theirs = patterns.DataFilesDict.from_patterns(patterns.get_data_patterns(str(folder)), base_path=str(folder))
    assert {str(split): [os.path.relpath(path, folder) for path in paths] for split, paths in theirs.items()} == splits
    for split, expected in splits.items():
        source = found(folder, split=split)
        assert names(source, folder) == expected
        others = [name for name in splits if name != split]
        assert source.note.startswith(f"split {split}, by the names of files; not read: ")
        assert all(name in source.note for name in others)
        assert f"eval_path: {{path: {folder}, split: " in source.note


def test_a_folder_whose_names_speak_of_no_split_is_read_as_a_whole_and_nothing_is_said(tmp_path: Path) -> None:
    files = ("trained.jsonl", "contest.jsonl", "more/evals.jsonl", "data-00000-of-2.jsonl")
    source = found(made(tmp_path / "train" / "set", *files))
    assert (len(source.files), source.note, source.num_ignored) == (4, "", 0)
    shards = made(tmp_path / "shards", "data/part-00000-of-00002.jsonl", "data/part-00001-of-00002.jsonl")
    assert (len(found(shards).files), found(shards).note) == (2, "")


def test_files_of_no_split_are_the_training_rows_where_no_file_is_called_so_and_else_named(tmp_path: Path) -> None:
    folder = made(tmp_path, "rows.jsonl", "test.jsonl")
    assert names(found(folder), folder) == ["rows.jsonl"]
    made(tmp_path, "train.jsonl")
    source = found(folder)
    assert (names(source, folder), source.num_ignored) == (["train.jsonl"], 1)


def test_a_split_may_be_asked_for_by_another_word_for_it(tmp_path: Path) -> None:
    folder = made(tmp_path, "dev.jsonl", "test.jsonl")
    for split, file in (("val", "dev.jsonl"), ("validation", "dev.jsonl"), ("eval", "test.jsonl")):
        assert names(found(folder, split=split), folder) == [file]


@pytest.mark.parametrize(
    ("files", "spec", "says"),
    [
        (["dev.jsonl", "test.jsonl"], {}, "has no files of the split train; its files are of validation, test: name"),
        (["train.jsonl"], {"split": "validation"}, "has no files of the split validation; its files are of train:"),
        (["a.jsonl"], {"split": "test"}, "has no files of the split test; no name of a file has one"),
        (["train.jsonl"], {"split": "train[:10%]"}, r"has no files of the split train\[:10%\]; its files are of train"),
        (["a.jsonl"], {"name": "main"}, "name: main chooses a configuration of a hub data set, but this is a local"),
        (["train-test.jsonl"], {}, "train-test.jsonl: its name speaks of the splits test and train; rename it"),
    ],
)
def test_a_split_that_is_not_there_or_not_clear_is_a_sentence(tmp_path, files, spec, says) -> None:
    must_refuse(DataError, says, found, made(tmp_path, *files), **spec)


def test_training_and_evaluation_read_two_splits_of_one_folder(tmp_path, plain_model, capsys) -> None:
    folder = made(tmp_path / "set", "train-a.jsonl", "train-b.jsonl", "validation.jsonl", "LICENSE.txt")
    data = {"path": str(folder), "eval_path": {"path": str(folder), "split": "validation"}}
    data_json = prepared(tmp_path / "run", model=plain_model, data=data)
    assert (data_json["train"]["num_rows"], data_json["eval"]["num_rows"]) == (2, 1)
    said = capsys.readouterr().err
    offer = f"To evaluate on one: eval_path: {{path: {folder}, split: validation}}"
    assert f"  split train, by the names of files; not read: validation. {offer}\n" in said
    assert "  other files, which are not read: 1\n" in said


def test_a_clone_of_a_hub_data_set_is_read_without_metadata_and_one_of_several_by_its_folder(tmp_path: Path) -> None:
    folder = made(tmp_path, "data/train-00000-of-00001.jsonl", "dataset_infos.json", ".git/rows.jsonl", ".cache/b.json")
    for name in ("README.md", ".gitattributes", "dataset_info.json", "config.json"):
        (folder / name).write_text("---\nconfigs:\n- config_name: default\n  data_files: data/train-*\n---\n# A set\n")
    source = found(folder)
    assert names(source, folder) == ["data/train-00000-of-00001.jsonl"]
    assert source.num_ignored == 4
    folder = made(tmp_path / "several", "main/train.jsonl", "socratic/train.jsonl")
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: main\n- config_name: socratic\n---\n")
    must_refuse(DataError, r"several data sets, as its README.md says: main, socratic; name the folder", found, folder)
    assert names(found(folder / "main"), folder) == ["main/train.jsonl"]


#: In a process of its own, which may end with threads of `datasets`.
SAVE = """
import sys
from pathlib import Path
from datasets import Dataset, DatasetDict, load_from_disk
rows = Dataset.from_list([{"text": f"row {number}", "id": number} for number in range(2500)])
rows.save_to_disk(sys.argv[1], num_shards=2)
DatasetDict(train=rows.select(range(7)), test=rows.select(range(3))).save_to_disk(sys.argv[2])
load_from_disk(sys.argv[1]).filter(lambda row: row["id"] < 3)
print(*(path.name for path in Path(sys.argv[1]).glob("cache-*")))
"""


def test_a_folder_that_datasets_saved_to_disk_is_read(tmp_path, plain_model, capsys) -> None:
    pytest.importorskip("datasets", reason="the optional extra `hub` is not installed")
    one, several = tmp_path / "one", tmp_path / "several"
    command = [sys.executable, "-c", SAVE, str(one), str(several)]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.startswith("cache-"), "what datasets keeps beside the rows is no rows"
    data_json = prepared(tmp_path / "a", model=plain_model, data={"path": str(one)})
    assert data_json["train"]["num_rows"] == 2500
    assert "columns that are not read: id" in capsys.readouterr().err
    data_json = prepared(tmp_path / "b", model=plain_model, data={"path": str(several)})
    assert data_json["train"]["num_rows"] == 7
    assert "split train, by the names of files; not read: test" in capsys.readouterr().err
