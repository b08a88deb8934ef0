"""Malformed and hostile files, templates and settings are named with their lines, all at once."""

import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardwise.data.prepare import cache
from shardwise.data.workers.pool import WorkerLimits
from shardwise.units import MIB
from tests.unit.data.helpers import refused, write_jsonl

GOOD = b'{"question": "q", "answer": "a"}\n'
CHAT = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n'


def _parquet(names: list[str], columns: list[Any]) -> bytes:
    into = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in columns], names=names), into)
    return into.getvalue()


PARQUET = _parquet(["text"], [["the cat " * 100] * 500])
#: name -> (content, line, what is said); see `test_read.py` for files, `test_formats.py` for rows.
FILES: dict[str, tuple[bytes, int, str]] = {
    "late.jsonl": (GOOD * 3000 + b'{"question": "q", "answer": 5}\n', 3001, "answer is 5; expected text"),
    "surrogate.jsonl": (GOOD + b'{"question": "q", "answer": "\\ud800"}\n', 2, "half a character"),
    "other.jsonl": (b'{"body": "x"}\n', 1, "has the columns body; expected messages"),
    "changes.jsonl": (GOOD + b'{"text": "x"}\n', 2, "has the columns text; expected question and answer"),
    "long.jsonl": (GOOD + b'{"question": "q", "answer": "' + b"cat " * 2000 + b'"}\n', 2, "tokens; max_length is 1024"),
    "user.jsonl": (CHAT + b'{"messages": [{"role": "user", "content": "q"}]}\n', 2, "has no trained token"),
    "type.json": (b'[{"text": "a"},\n{"text": 5}]', 2, "text is 5; expected text"),
    "cells.csv": (b"question,answer\na,b\na,b,c\n", 3, "has 3 cells; the header names 2 columns"),
    "bytes.csv": (b"question,answer\na,b\na,\xff\n", 3, "is not UTF-8"),
    "bytes.jsonl": (GOOD + b'\n{"question": "q", "answer": "\xff"}\n', 3, "is not UTF-8"),
    "bytes.json": (b'[{"text": "a"},\n{"text": "\xff"}]', 2, "is not UTF-8"),
    "bytes.txt": (b"a\nb\xff\n", 2, "is not UTF-8"),
    "columns.csv": (b"foo,bar\na,b\n", 1, "has the columns foo, bar; expected messages"),
    "twice.parquet": (_parquet(["text", "text"], [["a"], ["b"]]), 1, "the column 'text' stands twice; remove one"),
    "page.parquet": (PARQUET[:4] + b"\xff" * 196 + PARQUET[200:], 1, "is damaged from here on: "),
    "row.jsonl": (GOOD + b"x" * (20 * MIB), 2, "this row is longer than 16 MiB; a row holds one training example"),
}


def test_every_malformed_file_is_named_with_its_line(tmp_path: Path, plain_model: Path) -> None:
    for name, (content, _, _) in FILES.items():
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name in FILES]
    error = refused(tmp_path / "run", model=plain_model, data={"path": paths}, workers=2)
    assert (error.exit_code, error.total) == (2, len(FILES))
    for problem, (name, (_, line, message)) in zip(error.problems, FILES.items(), strict=True):
        assert problem.where == f"{tmp_path / name}:{line}"
        assert message in problem.message


def test_the_first_twenty_problems_are_listed_and_all_are_counted(tmp_path: Path, plain_model: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}, *({"text": number} for number in range(5000))])
    error = refused(tmp_path / "run", model=plain_model, data={"path": str(path)}, workers=2)
    assert "... and 4980 more (5000 in all)" in str(error)
    assert [problem.where for problem in error.problems] == [f"{path}:{line}" for line in range(2, 22)]


@pytest.mark.parametrize("damage", [None, "{"])
def test_a_tokenizer_that_cannot_be_loaded_is_named_with_its_line(tmp_path: Path, damage: str | None) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}])
    (tmp_path / "model").mkdir()
    if damage is not None:
        (tmp_path / "model" / "tokenizer.json").write_text(damage)
    places = {"model": "job.yaml:1"}
    error = refused(tmp_path / "run", model=tmp_path / "model", data={"path": str(rows)}, places=places)
    assert re.match(r"job\.yaml:1: model: .*has no tokenizer that can be loaded", str(error))
    (tmp_path / "model/config.json").write_text('{"model_type": "llama", "rms_norm_eps": 1}')
    error = refused(tmp_path / "other", model=tmp_path / "model", data={"path": str(rows)})
    assert "has no config.json that can be loaded: Validation error for field 'rms_norm_eps'" in str(error)


def test_a_cell_that_cannot_be_converted_is_named_with_its_row(tmp_path: Path, plain_model: Path) -> None:
    late = pa.array([0, 2**62, 0], pa.timestamp("us"))  # no year of Python's
    path = tmp_path / "rows.parquet"
    path.write_bytes(_parquet(["text"], [late]))
    other = write_jsonl(tmp_path / "rows.jsonl", [{"text": 5}])
    error = refused(tmp_path / "run", model=plain_model, data={"path": [str(path), str(other)]})
    said = {problem.where: problem.message for problem in error.problems}
    assert said[f"{path}:2"] == "text cannot be read: date value out of range"
    assert said[f"{path}:1"].startswith("text is datetime.datetime(1970")
    assert set(said) == {f"{path}:1", f"{path}:2", f"{path}:3", f"{other}:1"}


def _whole_files(folder: Path) -> dict[str, str]:
    """Paths that are no file of rows at all -> what is said."""
    for name in ("empty", "photos", "linked", "packed"):
        (folder / name).mkdir()
    for name in ("photos/a.png", "rows.doc", "rows", "rows.jsonl.gz", "packed/rows.jsonl.zst", "packed/rows.jsonl"):
        (folder / name).write_bytes(GOOD)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "linked" / "rows.jsonl").symlink_to(folder / "rows.doc")
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    return {
        "absent.jsonl": "there is no such file or folder",
        "*.jsonl": "there is no such file or folder, and patterns are not read: name the folder, or a list of files",
        "empty": "is a folder without rows; expected files that end in .jsonl",
        "photos": "is a folder without rows",
        "rows.doc": "is of an unknown kind; expected a name that ends in .jsonl",
        "rows": "is of an unknown kind",
        "rows.jsonl.gz": "is compressed; unpack it first (gunzip)",
        "packed": "rows.jsonl.zst: is compressed; unpack it first (unzstd)",
        "pipe.jsonl": "is not a regular file",
        "linked": "is a link that leaves",
        "loop.jsonl": "there is no such file or folder",
    }


def test_what_is_no_file_of_rows_is_named_with_the_line_of_the_job(tmp_path: Path, plain_model: Path) -> None:
    said = _whole_files(tmp_path)
    places = {f"data.path.{index}": f"job.yaml:{index + 5}" for index in range(len(said))}
    data = {"path": [str(tmp_path / name) for name in said]}
    error = refused(tmp_path / "run", model=plain_model, data=data, places=places)
    for index, (problem, name) in enumerate(zip(error.problems, said, strict=True)):
        assert problem.where == f"job.yaml:{index + 5}"
        assert problem.message.startswith(f"data.path: {tmp_path / name}")
        assert said[name] in problem.message


def test_a_file_that_may_not_be_read(tmp_path: Path, plain_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}])

    def refuse(path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(cache, "sha256_of", refuse)  # root may read whatever its mode says
    error = refused(tmp_path / "run", model=plain_model, data={"path": str(path)}, places={"data.path": "job.yaml:4"})
    assert str(error) == f"job.yaml:4: data.path: {path}: cannot be read: Permission denied"


CUT = {"over_long": "truncate", "max_length": 2}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"path": []}, "data.path is missing; name the rows to train on, for example path: chats.jsonl"),
        ({"chat_template": "FOLDER/rows.txt"}, "data.chat_template: FOLDER/rows.txt: is not UTF-8 text"),
        ({"chat_template": "FOLDER/large"}, "data.chat_template: FOLDER/large: is larger than"),
        ({"chat_template": "FOLDER/gone"}, "data.chat_template: FOLDER/gone: cannot be read"),
        ({"over_long": "drop", "max_length": 2}, "data.max_length: ROWS: every row was dropped"),
        (CUT, "data.max_length: ROWS: no row has a token to train on among its first 2"),
        ({"eval_fraction": 0.5}, "data.eval_fraction: ROWS: eval_fraction leaves no row to train on"),
        ({"path": {"path": "ROWS", "weight": 1e6}}, "data.path: ROWS: weight: 1e+06 is too much"),
        ({"path": {"path": "ROWS", "name": "main"}}, "data.path: ROWS: name: main chooses a configuration"),
        ({"path": {"path": "ROWS", "split": "a"}}, "data.path: ROWS: split: a chooses among files, but this is one"),
        ({"eval_path": {"path": "ROWS", "weight": 2.0}}, "data.eval_path: ROWS: weight: means nothing here"),
    ],
)
def test_what_a_job_makes_of_good_rows_is_named(tmp_path: Path, plain_model: Path, data: Any, says: str) -> None:
    (tmp_path / "rows.txt").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b" " * 2**21)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a long one"}])
    texts = (json.dumps({"path": "ROWS", **data}), says)
    found, expected = (text.replace("ROWS", str(rows)).replace("FOLDER", str(tmp_path)) for text in texts)
    error = refused(tmp_path / "run", model=plain_model, data=json.loads(found), places={"data": "job.yaml:3"})
    assert str(error).startswith(f"job.yaml:3: {expected}")


LIMITS = WorkerLimits(memory_bytes=256 * MIB, cpu_seconds=2)
LOOP, END = "{% for i in range(99999) %}", "{% endfor %}"
BOMBS = {
    "memory at compile time": ("{{ 'a' * 10**10 }}", "needs more than 256 MiB of memory"),
    "memory while rendering": ("{% for m in messages %}{{ m.content * 10**9 }}{% endfor %}", "needs more than 256 MiB"),
    "time": (LOOP * 2 + END * 2, "took more than 2 s of processor time; shorten the rows or replace the chat template"),
    "escape": ("{{ cycler.__init__.__globals__.os.popen('id') }}", "the chat template refuses this row"),
    "syntax": ("{% for m in messages %}", "is no chat template: Unexpected end of template"),
    "filter": ("\n{{ messages | nofilter}}", "is no chat template: No filter named 'nofilter'. (line 2 of"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_template_ends_in_a_sentence_within_its_limits(tmp_path: Path, plain_model: Path, name: str) -> None:
    template, message = BOMBS[name]
    (tmp_path / "template.jinja").write_text(template)
    path = write_jsonl(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}] * 3)
    data = {"path": str(path), "chat_template": str(tmp_path / "template.jinja")}
    started, places = time.monotonic(), {"data.chat_template": "job.yaml:9"}
    said = str(refused(tmp_path / "run", model=plain_model, data=data, places=places, limits=LIMITS))
    assert time.monotonic() - started < 60
    needs_a_row = name in ("memory while rendering", "escape")
    place = f"{path}:1: " if needs_a_row else f"job.yaml:9: data.chat_template: {tmp_path / 'template.jinja'}: "
    assert said.startswith(place)
    assert "\n" not in said or name == "escape"  # once, and not once per row
    assert message in said


def test_rows_that_end_a_worker_do_not_hide_what_is_wrong_elsewhere(tmp_path: Path, plain_model: Path) -> None:
    (tmp_path / "template.jinja").write_text("{% for m in messages %}{{ m.content * 10**9 }}{% endfor %}")
    hostile = [write_jsonl(tmp_path / f"{name}.jsonl", [{"question": "q", "answer": "a"}]) for name in "ac"]
    wrong = write_jsonl(tmp_path / "b.jsonl", [{"question": "q", "answer": 5}])
    data = {"path": [str(hostile[0]), str(wrong), str(hostile[1])], "chat_template": str(tmp_path / "template.jinja")}
    error = refused(tmp_path / "run", model=plain_model, data=data, limits=LIMITS, workers=2)
    said = {problem.where: problem.message for problem in error.problems}
    assert said[f"{wrong}:1"].startswith("answer is 5; expected text")
    assert said[f"{hostile[0]}:1"].startswith("this row or one after it needs more than 256 MiB of memory")


def test_a_tokenizer_that_names_code_of_its_own_runs_none(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}))
    auto = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "EvilTokenizer"}
    (model / "tokenizer_config.json").write_text(json.dumps(auto))
    (model / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "a b"}])
    error = refused(tmp_path / "run", model=model, data={"path": str(path)})
    assert "has no tokenizer that can be loaded" in str(error)
    assert not (tmp_path / "ran").exists()
