"""Forty malformed files: each is named with its line, all at once, with exit code 2 and without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.errors import DataError
from tests.unit.data.helpers import prepared, run_directory, write_jsonl

GOOD = b'{"question": "q", "answer": "a"}\n'
CHAT = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n'

#: name -> (content, line, what is said)
FILES: dict[str, tuple[bytes, int, str]] = {
    "broken.jsonl": (GOOD + b'{"question": "q", "answer"\n', 2, "is not JSON"),
    "late.jsonl": (GOOD * 3000 + b'{"question": "q", "answer": 5}\n', 3001, "answer is 5; expected text"),
    "latin.jsonl": (GOOD + b'{"question": "caf\xe9", "answer": "a"}\n', 2, "is not UTF-8 text"),
    "utf16.jsonl": (GOOD.decode().encode("utf-16"), 1, "is UTF-16 text"),
    "surrogate.jsonl": (GOOD + b'{"question": "q", "answer": "\\ud800"}\n', 2, "half a character"),
    "empty.jsonl": (b"", 1, "is empty"),
    "blank.jsonl": (b"\n\n\n", 1, "is empty"),
    "list.jsonl": (GOOD + b"[1, 2]\n", 2, "found a list"),
    "null.jsonl": (GOOD + b"null\n", 2, "found null"),
    "other.jsonl": (b'{"body": "x"}\n', 1, "has the columns body; expected messages"),
    "changes.jsonl": (GOOD + b'{"text": "x"}\n', 2, "has the columns text; expected question and answer"),
    "nothing.jsonl": (GOOD + b'{"question": "q", "answer": ""}\n', 2, "answer is empty"),
    "missing.jsonl": (GOOD + b'{"question": null, "answer": "a"}\n', 2, "question is null"),
    "twice.jsonl": (GOOD + b'{"question": "q", "answer": "a", "answer": "b"}\n', 2, "stands twice"),
    "deep.jsonl": (GOOD + b'{"question": ' + b"[" * 50_000 + b"\n", 2, "nested too deeply"),
    "digits.jsonl": (GOOD + b'{"question": ' + b"9" * 6000 + b"}\n", 2, "cannot be read"),
    "long.jsonl": (GOOD + b'{"question": "q", "answer": "' + b"cat " * 2000 + b'"}\n', 2, "tokens; max_length is 1024"),
    "gzip.jsonl": (b"\x1f\x8b\x08\x00\x00", 1, "compressed with gzip"),
    "pointer.jsonl": (b"version https://git-lfs.github.com/spec/v1\noid x\n", 1, "Git LFS pointer"),
    "zeros.jsonl": (GOOD + b"\x00" * 100 + b"\n", 2, "is not JSON"),
    "user.jsonl": (CHAT + b'{"messages": [{"role": "user", "content": "q"}]}\n', 2, "has no trained token"),
    "role.jsonl": (CHAT + b'{"messages": [{"role": "bot", "content": "q"}]}\n', 2, "role is 'bot'"),
    "types.jsonl": (CHAT + b'{"messages": "hello"}\n', 2, "expected a list of messages"),
    "content.jsonl": (CHAT + b'{"messages": [{"role": "user", "content": 1}]}\n', 2, "content is 1; expected text"),
    "keys.jsonl": (CHAT + b'{"messages": [{"who": "user"}]}\n', 2, "has the keys who; expected role and content"),
    "speaker.jsonl": (b'{"conversations": [{"from": "x", "value": "y"}]}\n', 1, "from is 'x'"),
    "cut.json": (b'[{"text": "a"},\n{"text": "b"', 2, "is not JSON"),
    "none.json": (b"[]\n", 1, "is an empty list"),
    "pretty.json": (b'{\n"text": "a"}\n', 1, "neither a list of rows"),
    "after.json": (b'[{"text": "a"}]\nx', 2, "goes on after"),
    "type.json": (b'[{"text": "a"},\n{"text": 5}]', 2, "text is 5; expected text"),
    "header.csv": (b"question,answer\n", 1, "is empty"),
    "unnamed.csv": (b",,\na,b,c\n", 1, "has no header"),
    "same.csv": (b"text,text\na,b\n", 1, "the column 'text' stands twice"),
    "cells.csv": (b"question,answer\na,b\na,b,c\n", 3, "has 3 cells; the header names 2 columns"),
    "quotes.csv": (b'question,answer\na,b\n"a,b\n', 3, "is not CSV"),
    "bytes.csv": (b"question,answer\na,b\na,\xff\n", 3, "is not UTF-8"),
    "columns.csv": (b"foo,bar\na,b\n", 1, "has the columns foo, bar; expected messages"),
    "fake.parquet": (b"PAR1" + b"\x00" * 50 + b"PAR1", 1, "is not a Parquet file"),
    "text.parquet": (GOOD, 1, "is not a Parquet file"),
}


@pytest.mark.parametrize("part", [0, 1])
def test_every_malformed_file_is_named_with_its_line(tmp_path: Path, plain_model: Path, part: int) -> None:
    chosen = list(FILES.items())[part * 20 : part * 20 + 20]
    for name, (content, _, _) in chosen:
        (tmp_path / name).write_bytes(content)
    paths = [str(tmp_path / name) for name, _ in chosen]
    with pytest.raises(DataError) as caught:
        prepared(tmp_path / "run", model=plain_model, data={"path": paths}, workers=2)
    assert caught.value.exit_code == 2
    assert caught.value.total == len(chosen) == 20
    for problem, (name, (_, line, message)) in zip(caught.value.problems, chosen, strict=True):
        assert problem.where == f"{tmp_path / name}:{line}"
        assert message in problem.message


def test_the_first_twenty_problems_are_listed_and_all_are_counted(tmp_path: Path, plain_model: Path) -> None:
    rows = [{"question": "q", "answer": "a"}, *({"question": "q", "answer": number} for number in range(5000))]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError) as caught:
        prepared(tmp_path / "run", model=plain_model, data={"path": str(path)}, workers=2)
    assert caught.value.total == 5000
    assert [problem.where for problem in caught.value.problems] == [f"{path}:{line}" for line in range(2, 22)]
    assert "... and 4980 more (5000 in all)" in str(caught.value)


@pytest.mark.parametrize("name", ["late.jsonl", "cells.csv"])
def test_the_command_says_so_on_stderr_and_ends_with_2(tmp_path: Path, plain_model: Path, name: str) -> None:
    content, line, message = FILES[name]
    (tmp_path / name).write_bytes(content)
    run = run_directory(tmp_path / "run", model=plain_model, data={"path": str(tmp_path / name)})
    done = subprocess.run(
        [sys.executable, "-m", "shardwise.data.prepare", str(run.root)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 2
    assert f"error: {tmp_path / name}:{line}: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not run.data.exists()


def test_a_damaged_parquet_page_is_a_sentence(tmp_path: Path, plain_model: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{"text": "the cat " * 100}] * 500), path, compression="none")
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=rf"{path}:1\b.*"):
        prepared(tmp_path / "run", model=plain_model, data={"path": str(path)})
