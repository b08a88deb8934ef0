import csv
import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.data.read.chunks import cut_file
from shardwise.data.read.rows import BadRow, DataRow, first_columns, read_chunk
from shardwise.data.read.sources import KINDS, SourceFile

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
TABLES = st.lists(st.fixed_dictionaries({"question": TEXTS, "answer": TEXTS}), min_size=1, max_size=12)


def read_all(path: Path, *, chunk_bytes: int = 1 << 20) -> tuple[list[DataRow | BadRow], list[tuple[int, str]]]:
    file = SourceFile(path=str(path), label=path.name, kind=KINDS[path.suffix])
    chunks, problems = cut_file(file, index=0, chunk_bytes=chunk_bytes)
    return [row for chunk in chunks for row in read_chunk(chunk)], problems


def written(rows: list[dict[str, str]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    if suffix == ".json":
        return json.dumps(rows, ensure_ascii=False, indent=1)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["question", "answer"], quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
@given(rows=TABLES, chunk_bytes=st.sampled_from([1, 7, 64, 1000]), mark=st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_the_same_wherever_the_file_is_cut(tmp_path, suffix, rows, chunk_bytes, mark) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" * mark + written(rows, suffix).encode())
    found, problems = read_all(path, chunk_bytes=chunk_bytes)
    assert problems == []
    assert [row.value for row in found if isinstance(row, DataRow)] == rows
    assert found == read_all(path)[0], "line numbers too must not depend on the cut"


@pytest.mark.parametrize("chunk_bytes", [1, 30, 1000])
def test_the_work_of_all_parts_is_that_of_the_file(tmp_path, chunk_bytes) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "river"}\n' * 9)
    chunks, _ = cut_file(SourceFile(path=str(path), label=path.name, kind="jsonl"), index=0, chunk_bytes=chunk_bytes)
    assert sum(chunk.num_bytes for chunk in chunks) == path.stat().st_size


@pytest.mark.parametrize("chunk_bytes", [1, 1000])
@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("rows.csv", 'text,answer\n"two\nlines",x\n\nb,y\n', [2, 5]),
        ("rows.json", '[\n {"text": "a"},\n {\n  "text": "b"\n }\n,\n\n {"text": "c"}]\n', [2, 3, 8]),
        ("lines.json", '{"text": "a"}\n{"text": "b"}\n', [1, 2]),
        ("rows.tsv", "text\tanswer\na, b\tc\n", [2]),
        ("semicolons.csv", 'text;answer\na;b\n\n"a, b";c\n', [2, 4]),
        ("tabs.csv", "text\tanswer\na, b\tc\n", [2]),
        ("commas.tsv", "text,answer\na,b\n", [2]),
        ("list.jsonl", ' \n[{"text": "a"},\n {"text": "b"}]', [2, 3]),
        ("joined.jsonl", '{"text": "a"}\n\ufeff{"text": "b"}\n\ufeff\n', [1, 2]),
        ("joined.txt", "a\n\ufeffb\r\n", [1, 2]),
        ("one.json", '{"text": "a", "tags": ["x"]}', [1]),
    ],
)
def test_lines_are_those_where_rows_begin(tmp_path, name, text, lines, chunk_bytes) -> None:
    (tmp_path / name).write_text(text)
    rows, problems = read_all(tmp_path / name, chunk_bytes=chunk_bytes)
    assert problems == []
    assert [row.line for row in rows] == lines
    assert all(isinstance(row, DataRow) and row.value["text"] in ("a", "b", "c", "two\nlines", "a, b") for row in rows)


TURNS = [{"messages": [{"role": "user", "content": str(number)}], "id": number} for number in range(10)]


def assert_read_in_parts(path: Path) -> None:
    """TURNS, of which a part holds four."""
    assert read_all(path) == ([DataRow(number, row) for number, row in enumerate(TURNS, start=1)], [])
    file = SourceFile(path=str(path), label=path.name, kind=KINDS[path.suffix])
    chunks, _ = cut_file(file, index=0, chunk_bytes=1)
    assert [chunk.first_line for chunk in chunks] == [1, 5, 9]
    assert first_columns(chunks) == (1, ("messages", "id"))


def test_parquet_is_read_by_row_groups_and_numbered_by_rows(tmp_path) -> None:
    pq.write_table(pa.Table.from_pylist(TURNS), tmp_path / "rows.parquet", row_group_size=4)
    assert_read_in_parts(tmp_path / "rows.parquet")


@pytest.mark.parametrize("open_writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_is_read_by_record_batches_as_a_stream_or_a_file(tmp_path, open_writer) -> None:
    path, table = tmp_path / "rows.arrow", pa.Table.from_pylist(TURNS)
    with open_writer(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    assert_read_in_parts(path)
    path.write_bytes(path.read_bytes()[: -path.stat().st_size // 2])
    rows, problems = read_all(path)
    messages = [message for _, message in problems] + [row.message for row in rows if isinstance(row, BadRow)]
    assert len(messages) == 1 and messages[0].startswith(("is not an Arrow file: ", "is damaged from here on: "))


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"text,answer\na,b\ntext,answer\n", 3, "is the header again, as where files were put together; remove it"),
        (b'{"text": "a"}\n{"text": \n', 2, "is not JSON: Expecting value"),
        (b'{"text": "a"}\n["a"]\n', 2, "found a list; expected one object per row"),
        (b"3\n", 1, "found a number; expected one object"),
        (b"null\n", 1, "found null; expected one object"),
        (b"{}\n", 1, "is an object without keys"),
        (b'{"text": "a", "text": "b"}\n', 1, "the key 'text' stands twice"),
        (b'{"text": "a"} {"text": "b"}\n', 1, "Extra data"),
        (b'{"text": ' + b"[" * 100_000 + b"\n", 1, "it is nested too deeply"),
        (b'{"n": ' + b"1" * 5000 + b"}\n", 1, "cannot be read: Exceeds the limit"),
        (b"\x00\x00\x00\n", 1, "is not JSON"),
    ],
)
def test_a_broken_line_is_reported_where_it_stands(tmp_path, content, line, message) -> None:
    path = tmp_path / ("rows.csv" if content.startswith(b"text,") else "rows.jsonl")
    path.write_bytes(content)
    bad = [row for row in read_all(path)[0] if isinstance(row, BadRow)]
    assert [row.line for row in bad] == [line]
    assert re.search(message, bad[0].message)


@pytest.mark.parametrize(
    ("name", "content", "line", "message"),
    [
        ("empty.jsonl", b"", 1, "is empty"),
        ("blank.jsonl", b"\n \n", 1, "is empty"),
        ("packed.jsonl", b"\x1f\x8b\x08\x00", 1, "compressed with gzip"),
        ("sheet.csv", b"PK\x03\x04....", 1, "zip archive"),
        ("wide.jsonl", '{"text": "a"}'.encode("utf-16"), 1, "is UTF-16 text"),
        ("wider.jsonl", '{"text": "a"}'.encode("utf-32"), 1, "is UTF-32 text"),
        ("pointer.jsonl", b"version https://git-lfs.github.com/spec/v1\n", 1, "Git LFS pointer"),
        ("renamed.jsonl", b"PAR1....", 1, "name it with .parquet"),
        ("rows.parquet", b'{"text": "a"}\n', 1, "is not a Parquet file"),
        ("rows.arrow", b'{"text": "a"}\n', 1, "is not an Arrow file"),
        ("cut.arrow", b"ARROW1" + b"\x00" * 20, 1, "is not an Arrow file: "),
        ("short.arrow", b"\xff\xff\xff\xff\x10", 1, "is not an Arrow file: "),
        ("renamed.csv", b"ARROW1....", 1, "is an Arrow file; name it with .arrow"),
        ("columns.json", b'{"text": ["a", "b"], "id": [1, 2]}', 1, "holds columns, not rows; write a list of rows"),
        ("indent.json", b'{\n "messages": [\n  [{"role": "user"}]]}', 1, "holds columns, not rows"),
        ("pandas.json", b'{"text": {"0": "a", "1": "b"}}', 1, r"not rows; .* in pandas to_json\(orient='records'\)"),
        ("under.json", b'{"version": 1, "data": [{"question": "q", "answer": "a"}]}', 1, "rows under the key 'data'"),
        ("splits.json", b'{"train": [\n{"messages": []}]}', 1, "has its rows under the key 'train'; write that list"),
        ("columns.jsonl", b'{"text": ["a", "b"]}\n', 1, "holds columns, not rows"),
        ("cut.parquet", b"PAR1" + b"\x00" * 20, 1, "is not a Parquet file"),
        ("none.json", b"[ ]", 1, "is an empty list"),
        ("cut.json", b'[{"text": "a"},\n{"text": "b"}', 2, "the file ends here; expected ',' or ']'"),
        ("comma.json", b'[{"text": "a"},\n]', 2, "is not JSON: Expecting value"),
        ("more.json", b'[{"text": "a"}]\n[]', 2, "goes on after the list's closing bracket"),
        ("deep.json", b"[" * 100_000, 1, "nested too deeply"),
        ("pretty.json", b'{\n "text": "a"\n}', 1, r"neither a list of rows \(\[\{...\}, ...\]\) nor one whole object"),
        ("excel.csv", b"sep=;\ntext;id\na;1\n", 1, "begins with a line of Excel's, sep=, and not with its columns"),
        ("head.csv", b"question,answer\n", 1, "is empty"),
        ("names.csv", b",\n1,2\n", 1, "has no header"),
        ("twice.csv", b"text,text\n1,2\n", 1, "the column 'text' stands twice"),
        ("latin.csv", b"text,\xe9\n1,2\n", 1, "is not UTF-8"),
        ("quote.csv", b'text\na\n"b\nc\n', 3, "is not CSV: unexpected end of data"),
        ("stray.csv", b'text\n"a"b\n', 2, "is not CSV"),
    ],
)
def test_what_is_no_rows_says_what_it_is(tmp_path, name, content, line, message) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    _, problems = read_all(path)
    assert [at for at, _ in problems] == [line]
    assert re.search(message, problems[0][1])


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("cut.json", b'[{"text": "a"},\n5,\n{"text": "b"}', [2, 3]),
        ("nul.json", b'[{"text": "a"},\n5,\n{"text": "b\x00"}]', [2, 3]),
        ("quote.csv", b'question,answer\na,b\nonly\n"c,d\ne,f\n', [3, 4]),
        ("joined.csv", b'question,answer\na,b\n\xef\xbb\xbf"question",answer\na,b\nquestion,answer\n', [3, 5]),
        ("rows.csv", b"question,answer\na,b\nc\nd,e\ng\n", [3, 5]),
        ("rows.json", b'[{"text": "a"},\n{"a": 1, "a": 2},\n5,\n{"text": "b"}]', [2, 3]),
    ],
)
def test_what_is_broken_hides_no_bad_row(tmp_path, name, content, lines) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    rows, problems = read_all(path)
    assert [row.line for row in rows if isinstance(row, BadRow)] + [line for line, _ in problems] == lines
