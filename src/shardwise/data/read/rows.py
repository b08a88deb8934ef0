"""Reads a chunk's rows; a bad row is reported, not raised: all are found at once."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.data.read.chunks import DELIMITERS, Chunk
from shardwise.data.read.columnar import read_groups
from shardwise.data.read.json_files import MAX_ROW_BYTES, after_space, nesting_or
from shardwise.data.read.messages import DECODER, RowError, unique
from shardwise.data.read.sources import COLUMNAR
from shardwise.errors import said


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row: column name -> value. `line` is 1-based, or the number of the row."""

    line: int
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why."""

    line: int
    message: str


def read_chunk(chunk: Chunk) -> Iterator[DataRow | BadRow]:
    """The chunk's rows in order, never more than one batch of them in memory."""
    return _READERS[chunk.kind](chunk)


def first_columns(chunks: Sequence[Chunk]) -> tuple[int, tuple[str, ...]] | None:
    """Line and names of the header, or of the first row that can be read; None without one."""
    for chunk in chunks:
        if chunk.header:
            return 1, chunk.header
        for row in read_chunk(chunk):
            if isinstance(row, DataRow):
                return row.line, tuple(row.value)
    return None


def _row(line: int, value: Any) -> DataRow | BadRow:
    if isinstance(value, dict):
        return DataRow(line, value) if value else BadRow(line, "is an object without keys; expected a row's columns")
    names = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    found = names.get(type(value), "null")
    return BadRow(line, f'found {found}; expected one object per row, for example {{"text": "..."}}')


def _lines(chunk: Chunk) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, without byte order marks where files were put together."""
    for line, content in enumerate(_text(chunk).split("\n"), start=chunk.first_line):
        if (text := content.removeprefix("\ufeff")).strip():
            yield line, text


def _parse_line(line: int, content: str) -> DataRow | BadRow:
    try:
        return _row(line, DECODER.decode(content))
    except json.JSONDecodeError as error:
        return BadRow(line, f"is not JSON: {error.msg} (column {error.colno}); expected one whole object per line")
    except (RecursionError, ValueError, RowError) as error:
        return BadRow(line, f"cannot be read: {nesting_or(error)}")


def _read_array(chunk: Chunk) -> Iterator[DataRow | BadRow]:
    text = _text(chunk)
    at, line = 0, chunk.first_line
    while at < len(text):
        try:
            value, end = DECODER.raw_decode(text, at)
        except RowError as error:
            yield BadRow(line, f"cannot be read: {error}")
            end = json.JSONDecoder().raw_decode(text, at)[1]
        except RecursionError as error:
            yield BadRow(line, f"cannot be read: {nesting_or(error)}; the rows after it were not checked")
            return
        else:
            yield _row(line, value)
        comma = text.find(",", end)
        following = len(text) if comma < 0 else after_space(text, comma + 1)
        line += text.count("\n", at, following)
        at = following


def _read_csv(chunk: Chunk) -> Iterator[DataRow | BadRow]:
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = io.StringIO(_text(chunk), newline="\n")  # which cuts at line feeds only; others may stand inside a cell
    reader = csv.reader(lines, delimiter=DELIMITERS[chunk.kind], strict=True)
    line = chunk.first_line
    for cells in reader:
        if cells:
            yield _csv_row(line, cells, header=chunk.header)
        line = chunk.first_line + reader.line_num


def _csv_row(line: int, cells: list[str], *, header: tuple[str, ...]) -> DataRow | BadRow:
    if len(cells) != len(header):
        return BadRow(line, f"has {len(cells)} cells; the header names {len(header)} columns ({', '.join(header)})")
    if tuple(cell.strip('\ufeff" ') for cell in cells) == header:
        return BadRow(line, "is the header again, as where files were put together; remove it")
    return DataRow(line, dict(zip(header, cells, strict=True)))


def _read_columnar(chunk: Chunk) -> Iterator[DataRow | BadRow]:
    import pyarrow as pa

    line = chunk.first_line
    try:
        for batch in read_groups(chunk.path, kind=chunk.kind, start=chunk.start, stop=chunk.stop, columns=chunk.header):
            named = zip(batch.schema.names, batch.columns, strict=True)
            columns = [(name, column, "map<" in str(column.type)) for name, column in named]
            for index in range(batch.num_rows):
                yield _columnar_row(line, index, columns)
                line += 1
    except (pa.ArrowException, OSError, ValueError, ArithmeticError) as error:
        if isinstance(error, MemoryError):  # Arrow's is of both kinds
            raise
        yield BadRow(line, f"is damaged from here on: {said(error)}")


def _columnar_row(line: int, index: int, columns: list[tuple[str, Any, bool]]) -> DataRow | BadRow:
    value: dict[str, Any] = {}
    for name, column, has_maps in columns:
        try:
            cell = column[index].as_py()
            value[name] = _objects(cell) if has_maps else cell
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - a stranger's cell: each type's conversion has errors of its own
            return BadRow(line, f"{name} cannot be read: {said(error)}")
    return DataRow(line, value)


def _objects(value: Any) -> Any:
    """Maps, which Arrow gives as lists of pairs, as objects."""
    if isinstance(value, dict):
        return {key: _objects(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if not value or not isinstance(value[0], tuple):
        return [_objects(part) for part in value]
    return unique([(str(key), _objects(part)) for key, part in value])


def _text(chunk: Chunk) -> str:
    """The chunk's text. Bytes that are no UTF-8 become lone surrogates, refused later."""
    with Path(chunk.path).open("rb") as file:
        file.seek(chunk.start)
        return file.read(chunk.stop - chunk.start).decode("utf-8", errors="surrogateescape")


_READERS: dict[str, Callable[[Chunk], Iterator[DataRow | BadRow]]] = {
    "jsonl": lambda chunk: (_parse_line(line, content) for line, content in _lines(chunk)),
    "json": _read_array,
    **dict.fromkeys(DELIMITERS, _read_csv),
    **dict.fromkeys(COLUMNAR, _read_columnar),
    # A document a line, as the hub's `text` builder reads them; empty lines are none.
    "txt": lambda chunk: (DataRow(line, {"text": text.removesuffix("\r")}) for line, text in _lines(chunk)),
}
