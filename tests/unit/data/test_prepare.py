"""Whole preparations: real workers, real files, real cache, and many rows."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardwise.data.prepare import ingest
from shardwise.data.store import PreparedData, open_prepared
from shardwise.errors import DataError
from shardwise.spec.run import read_json
from shardwise.units import MIB
from tests.refusals import must_refuse
from tests.unit.data.helpers import prepared, run_directory, write_jsonl
from tests.unit.disks import small_disk

QUESTIONS = [{"question": f"what is {number}?", "answer": f"it is {number}"} for number in range(50)]


def run_python(run: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command, str(run)], capture_output=True, text=True, check=False)


def test_a_second_preparation_finds_the_first_without_the_heavy_libraries(tmp_path, plain_model, capsys) -> None:
    path = write_jsonl(tmp_path / "chats.jsonl", [{**row, "id": 3} for row in QUESTIONS])
    data_json = prepared(tmp_path / "run", model=plain_model, data={"path": str(path)})
    said = capsys.readouterr().err
    assert f"{path}: 50 rows, question/answer\n" in said and "columns that are not read: id" in said
    assert "train: 50 sequences of at most" in said
    assert read_json(tmp_path / "run" / "data.json") == data_json
    train = data_json["train"]
    assert (train["num_rows"], train["num_samples"], train["num_dropped"], train["num_truncated"]) == (50, 50, 0, 0)
    assert train["sources"][0]["format"] == "question_answer"
    assert data_json["padding_id"] == 1  # the end of a text: padding tokens may have a row of zeros
    assert "<|im_start|>" in data_json["chat_template"]
    data = open_prepared(data_json["train"])
    assert (int(data.lengths.sum()), int(data.lengths.max())) == (train["num_tokens"], train["longest"])
    assert int(data.trained_counts.sum()) == train["num_trained_tokens"]
    assert data.where(7) == f"{path}:8"
    heavy = "{'torch', 'transformers', 'tokenizers', 'pyarrow', 'datasets', 'huggingface_hub'}"
    start = "import sys; from shardwise.programs.prepare import main; main(sys.argv[1:])"
    code = f"{start}; print({heavy} & set(sys.modules))"
    done = run_python(run_directory(tmp_path / "other", model=plain_model, data={"path": str(path)}).root, "-c", code)
    assert (done.returncode, done.stdout) == (0, "set()\n")
    assert "was prepared before" in done.stderr
    assert read_json(tmp_path / "other" / "data.json") == data_json


def test_every_kind_of_file_gives_the_same_tokens(tmp_path, plain_model) -> None:
    write_jsonl(tmp_path / "a" / "rows.jsonl", QUESTIONS)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "rows.json").write_text(json.dumps(QUESTIONS, indent=1))
    (tmp_path / "b" / "README.md").write_text("no rows")
    lines = ["answer,id,question", *(f'"{row["answer"]}",1,"{row["question"]}"' for row in QUESTIONS)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    table = pa.Table.from_pylist([{"picture": b"\xff" * 10, **row} for row in QUESTIONS])
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=20)
    names = ["a", "b", "rows.csv", "rows.parquet", "other.parquet"]
    others = [{"response": "no", "q": row["question"], "answer": row["answer"]} for row in QUESTIONS]
    pq.write_table(pa.Table.from_pylist(others), tmp_path / "other.parquet")
    (tmp_path / "b" / "LICENSE.txt").write_text("no rows")
    paths = [str(tmp_path / name) for name in names]
    columns = {"question": "q"}
    data_json = prepared(tmp_path / "run", model=plain_model, data={"path": paths, "columns": columns}, workers=2)
    data = open_prepared(data_json["train"])
    samples = [data.sample(index)[0].tolist() for index in range(len(data))]
    assert [source["num_rows"] for source in data_json["train"]["sources"]] == [50] * 5
    assert samples[:50] == samples[50:100] == samples[100:150] == samples[150:200] == samples[200:]
    assert data.where(0) == f"{tmp_path}/a/rows.jsonl:1"
    assert data.where(101) == f"{tmp_path}/rows.csv:3"
    assert data.where(150 + 21) == f"{tmp_path}/rows.parquet:22"
    for ours in ("question", "system"):  # of which no row needs the other
        with pytest.raises(DataError, match=rf"columns: {ours} is to be read from qq; the rows have question, answer$"):
            prepared(tmp_path / "typo", model=plain_model, data={"path": paths[:2], "columns": {ours: "qq"}})


def test_a_text_file_holds_a_document_a_line_and_an_empty_one_is_passed_over(tmp_path, plain_model, capsys) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbfonce upon\r\n\n a time \n")
    data_json = prepared(tmp_path / "run", model=plain_model, data={"path": str(path)})
    assert f"{path}: 2 rows, text, a document a line" in capsys.readouterr().err
    shown = ["".join(text for text, _ in row["text"]) for row in data_json["preview"]]
    assert shown == ["once upon</s>", " a time </s>"]
    assert open_prepared(data_json["train"]).where(1) == f"{path}:3"
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("once upon\n")
    (tmp_path / "books" / "two.txt").touch()
    prepared(tmp_path / "run", model=plain_model, data={"path": str(tmp_path / "books")})
    said = capsys.readouterr().err
    assert "1 rows, text" in said and "other files, which are not read: 1" in said


def test_rows_to_evaluate_on_are_a_share_or_from_files_of_their_own(tmp_path, plain_model) -> None:
    path = str(write_jsonl(tmp_path / "rows.jsonl", QUESTIONS))
    data = {"path": path, "eval_fraction": 0.25, "packing": True}
    data_json = prepared(tmp_path / "run", model=plain_model, data=data)
    train, evaluation = open_prepared(data_json["train"]), open_prepared(data_json["eval"])
    assert (data_json["train"]["num_rows"], data_json["eval"]["num_rows"]) == (38, 12)
    lines = [set(part.arrays["doc_line"].tolist()) for part in (train, evaluation)]
    assert lines[0] | lines[1] == set(range(1, 51))
    assert not lines[0] & lines[1]
    other = prepared(tmp_path / "seed", model=plain_model, data=data, seed=7)
    assert other["fingerprint"] != data_json["fingerprint"]
    assert set(open_prepared(other["eval"]).arrays["doc_line"].tolist()) != lines[1]
    texts = write_jsonl(tmp_path / "eval.jsonl", [{"text": "the cat"}, {"text": "the dog"}])
    own = prepared(tmp_path / "own", model=plain_model, data={"path": path, "eval_path": str(texts)})
    evaluation = open_prepared(own["eval"])
    assert (len(open_prepared(own["train"])), len(evaluation), evaluation.where(1)) == (50, 2, f"{texts}:2")


def test_long_rows_are_counted(tmp_path, plain_model, capsys) -> None:
    pairs = [("the cat sat", " on the mat"), ("the cat sat", " on the mat" * 40), ("the cat sat" * 40, " on the mat")]
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
    path = str(write_jsonl(tmp_path / "rows.jsonl", rows))

    def run(policy: str) -> dict[str, Any]:
        data = {"path": path, "max_length": 64, "over_long": policy}
        return prepared(tmp_path / policy, model=plain_model, data=data)["train"]

    with pytest.raises(DataError, match=rf"{path}:2: has \d+ tokens; max_length is 64: raise max_length") as caught:
        run("error")
    assert caught.value.total == 2
    dropped, truncated = run("drop"), run("truncate")
    assert (dropped["num_rows"], dropped["num_dropped"], dropped["num_truncated"]) == (1, 2, 0)
    assert (truncated["num_rows"], truncated["num_dropped"], truncated["num_truncated"]) == (2, 1, 1)
    assert truncated["longest"] == 64
    said = capsys.readouterr().err
    assert "2 rows dropped as longer than max_length\n" in said
    assert "1 rows dropped, of which truncation leaves nothing trained\n" in said


@pytest.mark.slow
def test_what_shapes_tokens_is_part_of_the_key_and_what_does_not_is_not(tmp_path, plain_model) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", QUESTIONS)

    def key(**data: Any) -> str:
        return prepared(tmp_path / "run", model=plain_model, data={"path": str(path), **data})["fingerprint"]

    first = key()
    assert key(shuffle=False) == first and key(max_length=512) != first
    moved = path.rename(tmp_path / "moved.jsonl")
    data_json = prepared(tmp_path / "run", model=plain_model, data={"path": str(moved)})
    assert data_json["fingerprint"] == first
    assert open_prepared(data_json["train"]).where(0) == f"{moved}:1"
    write_jsonl(moved, QUESTIONS[:-1])
    assert prepared(tmp_path / "run", model=plain_model, data={"path": str(moved)})["train"]["num_rows"] == 49


def test_a_damaged_or_unfinished_entry_is_prepared_anew(tmp_path, plain_model, cache) -> None:
    data = {"path": str(write_jsonl(tmp_path / "rows.jsonl", QUESTIONS)), "packing": True}
    first = prepared(tmp_path / "run", model=plain_model, data=data)
    folder = Path(first["train"]["folder"])
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    os.truncate(folder / "tokens.bin", 100)
    must_refuse(DataError, "is damaged: a file is missing or cut short", PreparedData.open, folder)
    assert prepared(tmp_path / "run", model=plain_model, data=data, workers=3) == first
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole
    folder.parent.rename(folder.parent.with_name(f"{folder.parent.name}.partial"))
    assert prepared(tmp_path / "run", model=plain_model, data=data) == first
    assert sorted(found.suffix for found in (cache / "data").iterdir()) == ["", ".lock"]


def test_a_file_that_changes_meanwhile_stops_it(tmp_path, plain_model, monkeypatch) -> None:
    path, work = write_jsonl(tmp_path / "rows.jsonl", QUESTIONS), ingest._work

    def work_then_change(*arguments: Any, **settings: Any) -> Any:
        replies = work(*arguments, **settings)
        write_jsonl(path, QUESTIONS[1:])
        return replies

    monkeypatch.setattr(ingest, "_work", work_then_change)
    with pytest.raises(DataError, match=f"{path}: changed while it was prepared; run again"):
        prepared(tmp_path / "run", model=plain_model, data={"path": str(path)})
    assert not (tmp_path / "run" / "data.json").exists()


def test_ids_beyond_the_vocabulary_of_the_model_are_named(tmp_path, plain_model) -> None:
    small = shutil.copytree(plain_model, tmp_path / "model")
    (small / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 262}))
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "zq"}, {"text": "the cat sat"}])
    message = rf"{path}:2: has token id \d+ \('.*'\), beyond the model's vocabulary of 262; tokenizer and model do not"
    must_refuse(DataError, message, prepared, tmp_path / "run", model=small, data={"path": str(path)})


def test_a_cache_that_cannot_be_written(tmp_path, plain_model, monkeypatch) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", QUESTIONS)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "file"))
    run = run_directory(tmp_path / "run", model=plain_model, data={"path": str(path)})
    done = run_python(run.root, "-m", "shardwise.programs.prepare")
    assert (done.returncode, done.stdout, run.data.exists()) == (2, "", False)
    assert "cannot write the data cache: Not a directory; set SHARDWISE_CACHE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kib", [12, 40])
def test_a_cache_whose_disk_is_too_small_is_said_and_no_row_lost_in_silence(tmp_path, plain_model, monkeypatch, kib):
    """Wherever it fills up: in a worker, or in what joins their parts."""
    path = write_jsonl(tmp_path / "rows.jsonl", QUESTIONS * 80)
    run = run_directory(tmp_path / "run", model=plain_model, data={"path": str(path)})
    with small_disk(tmp_path / "disk", kib=kib) as disk:
        monkeypatch.setenv("SHARDWISE_CACHE", str(disk))
        done = run_python(run.root, "-m", "shardwise.programs.prepare")
        assert done.returncode == 2, done.stderr
        assert f"{disk}/data: prepared rows take about " in done.stderr
        assert f"and this disk has {kib}.0 KiB free; set SHARDWISE_CACHE to another" in done.stderr
        assert f"{disk}/data: cannot write the data cache: No space left on device (" in done.stderr
        assert " KiB free); set SHARDWISE_CACHE to a folder with space" in done.stderr


#: Prepares, and prints peaks in KiB: right after the imports, at the end, and the largest child's.
MEASURE = """
import resource, sys
from pathlib import Path
import shardwise.data.prepare.ingest
from shardwise.data.prepare.prepare import prepare
from shardwise.spec.run import RunDirectory
peak = lambda who: resource.getrusage(who).ru_maxrss
before = peak(resource.RUSAGE_SELF)
prepare(RunDirectory(Path(sys.argv[1])))
print(before, peak(resource.RUSAGE_SELF), peak(resource.RUSAGE_CHILDREN))
"""


def measure(folder: Path, model: Path, *, num_rows: int) -> tuple[int, int]:
    """(bytes the parent grew by, peak of its largest worker in bytes)."""
    rows = ({"question": f"what is {number}?", "answer": f"it is {number}"} for number in range(num_rows))
    data = {"path": str(write_jsonl(folder / "rows.jsonl", rows)), "packing": True}
    run = run_directory(folder / f"run-{num_rows}", model=model, data=data)
    done = subprocess.run([sys.executable, "-c", MEASURE, str(run.root)], capture_output=True, text=True, check=True)
    before, after, child = map(int, done.stdout.split())
    return (after - before) * 1024, child * 1024


@pytest.mark.slow
def test_ten_times_the_rows_need_a_few_bytes_more_per_row(tmp_path: Path, plain_model: Path) -> None:
    small, small_worker = measure(tmp_path, plain_model, num_rows=10_000)
    large, large_worker = measure(tmp_path, plain_model, num_rows=100_000)
    # A row's facts are 13 bytes and a few copies; a Python dict of two strings about 400.
    assert (large - small) / 90_000 < 200
    assert large_worker - small_worker < 150 * MIB
