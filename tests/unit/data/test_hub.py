"""The hub path with the real `datasets` library; a local folder stands for the hub."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.data.read.chunks import cut_file
from shardwise.data.read.formats import BY_NAME, read_row
from shardwise.data.read.rows import read_chunk
from shardwise.data.read.sources import Source, SourceFile, find_sources
from shardwise.errors import DataError
from shardwise.spec.job.data import SourceSpec
from shardwise.spec.job.places import Places
from tests.marks import first, rare_but_first
from tests.unit.data.helpers import write_jsonl

pytest.importorskip("datasets", reason="the optional extra `hub` is not installed")

#: In a process of its own: `datasets` reads the places of its caches at its import.
FETCH = """
import json, sys
from pathlib import Path
from shardwise.data.read.hub import fetch_hub_rows
from shardwise.errors import DataError
from shardwise.spec.job.data import SourceSpec
try:
    path, note = fetch_hub_rows(SourceSpec(**json.loads(sys.argv[1])), into=Path(sys.argv[2]))
except DataError as error:
    sys.exit(str(error))
import pyarrow.parquet as pq
print(json.dumps({"path": str(path), "note": note, "rows": pq.read_table(path).to_pylist()}))
"""

#: Addresses where no hub answers -> what is said; no host, which takes `datasets` half a minute.
UNREACHABLE = {"hub": "protocol", "http://hub.invalid": "hub.invalid|[Nn]ame|resol", "http://127.0.0.1:9": "refused"}


def run(code: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environ})


def fetch(spec: dict[str, str], into: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return run(FETCH, json.dumps(spec), str(into), HF_HOME=str(into / "home"), **environ or {"HF_HUB_OFFLINE": "1"})


def test_a_split_becomes_a_parquet_file_in_the_cache_and_is_kept(tmp_path: Path) -> None:
    rows = [{"question": f"q{number}", "answer": "a"} for number in range(5)]
    write_jsonl(tmp_path / "repo" / "train.jsonl", rows)
    write_jsonl(tmp_path / "repo" / "test.jsonl", rows[:2])
    spec = {"path": str(tmp_path / "repo"), "split": "test"}
    done = fetch(spec, tmp_path / "hub")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert first["rows"] == rows[:2]
    again = json.loads(fetch(spec, tmp_path / "hub").stdout)
    assert again["path"] == first["path"]
    assert "using the copy fetched before" in again["note"]
    missing = fetch({**spec, "split": "validation"}, tmp_path / "hub")
    assert (missing.returncode, "Traceback" in missing.stderr) == (1, False)
    assert "cannot be loaded as a hub data set" in missing.stderr


@pytest.mark.parametrize("endpoint", rare_but_first(UNREACHABLE))
def test_without_a_network_the_copy_fetched_before_is_used_or_a_sentence_said(tmp_path: Path, endpoint: str) -> None:
    write_jsonl(tmp_path / "repo" / "train.jsonl", [{"question": "q", "answer": "a"}])
    kept = Path(json.loads(fetch({"path": str(tmp_path / "repo")}, tmp_path / "hub").stdout)["path"])
    spec = {"path": "some-org/some-set"}
    identity = hashlib.sha256(b"some-org/some-set\nNone\ntrain").hexdigest()[:32]
    (tmp_path / "hub" / identity).mkdir()
    kept.rename(tmp_path / "hub" / identity / "0123abc.parquet")
    done = fetch(spec, tmp_path / "hub", HF_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == [{"question": "q", "answer": "a"}]
    assert re.search(rf"^the hub does not answer \(.*({UNREACHABLE[endpoint]}).*\); using the copy", found["note"])
    absent = fetch({"path": "some-org/other"}, tmp_path / "hub", HF_ENDPOINT=endpoint)
    assert (absent.returncode, "Traceback" in absent.stderr) == (1, False)
    assert "some-org/other: is no file or folder here, and cannot be loaded as a hub data set: " in absent.stderr


@pytest.mark.parametrize("endpoint", first(0, UNREACHABLE, ci=1))
def test_a_model_that_no_hub_gives_is_a_sentence(tmp_path: Path, endpoint: str) -> None:
    code = """
import shardwise.data.read.hub as data, shardwise.models.load as models
from shardwise.errors import InputError
for find in (data.tokenizer_folder, models.find_model_folder):
    try:
        find("some-org/some-model")
    except InputError as error:
        print(error)
"""
    done = run(code, HF_HOME=str(tmp_path), HF_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    tokenizer, model = done.stdout.splitlines()
    assert tokenizer.startswith("some-org/some-model: is no folder here, and its tokenizer cannot be fetched")
    assert model.startswith("some-org/some-model: is neither a folder nor a model the hub gives: ")
    assert all(re.search(UNREACHABLE[endpoint], line) for line in (tokenizer, model))


def test_a_name_that_is_no_path_is_taken_for_a_hub_id_and_one_with_a_suffix_is_not(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def fetched(spec: SourceSpec) -> tuple[Path, str]:
        assert spec.path == "openai/gsm8k"
        return tmp_path / "rows.parquet", "from the hub"

    def find(spec: SourceSpec) -> tuple[Source, ...]:
        return find_sources([spec], fetch=fetched, key="path", places=Places(by_key={}, file="job.yaml"))

    (source,) = find(SourceSpec(path="openai/gsm8k", name="main"))
    assert (source.files[0].kind, source.files[0].label, source.note) == ("parquet", "openai/gsm8k", "from the hub")
    for path in ("chats.jsonl", "no/such/folder", "../gone", "/gone"):
        with pytest.raises(DataError, match=f"job.yaml:1: data.path: {path}: there is no such file or folder"):
            find(SourceSpec(path=path))


def test_calls_of_different_arguments_come_from_the_hub_as_the_file_has_them(tmp_path: Path) -> None:
    """`datasets` 5 keeps objects of different keys as JSON text, and 4 fills them up with nulls."""
    given = ({"city": "Paris"}, {"n": 3})
    calls = [{"type": "function", "function": {"name": "f", "arguments": one}} for one in given]
    user = {"role": "user", "content": "weather?"}
    rows = [{"messages": [user, {"role": "assistant", "content": "", "tool_calls": [call]}]} for call in calls]
    write_jsonl(tmp_path / "repo" / "train.jsonl", rows)
    done = fetch({"path": str(tmp_path / "repo")}, tmp_path / "hub")
    assert done.returncode == 0, done.stderr
    file = SourceFile(path=json.loads(done.stdout)["path"], label="hub", kind="parquet")
    (chunk,), _ = cut_file(file, index=0, chunk_bytes=1000)
    for row, read in zip(rows, read_chunk(chunk), strict=True):
        assert read_row(BY_NAME["messages"], read.value, columnar=True).messages == row["messages"]
