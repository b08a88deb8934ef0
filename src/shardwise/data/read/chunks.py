"""Cuts a file into chunks of whole rows, which workers parse in parallel.

Each file is read once, and only byte offsets and line numbers are kept. Bytes are decoded as
Latin-1 here, one character a byte, so that character offsets are byte offsets.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from shardwise.data.read import columnar
from shardwise.data.read.json_files import MAX_ROW_BYTES, TOO_LONG, BrokenFileError, Place, json_kind, json_list
from shardwise.data.read.sources import COLUMNAR, Kind, SourceFile
from shardwise.errors import said

DELIMITERS: dict[Kind, str] = {"csv": ",", "tsv": "\t", "ssv": ";"}

#: First bytes of files that are not rows, and what to do about them.
_FOREIGN = (
    (b"\x1f\x8b", "is compressed with gzip; unpack it first"),
    (b"PK\x03\x04", "is a zip archive (or a spreadsheet); export its rows as CSV or JSONL"),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstandard; unpack it first"),
    (b"BZh", "is compressed with bzip2; unpack it first"),
    (b"\xff\xfe\x00\x00", "is UTF-32 text; save it as UTF-8"),
    (b"\x00\x00\xfe\xff", "is UTF-32 text; save it as UTF-8"),
    (b"\xff\xfe", "is UTF-16 text; save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text; save it as UTF-8"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the file; run `git lfs pull`"),
)

_NAMES = {"parquet": "a Parquet", "arrow": "an Arrow"}


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows of one file, by its index among all. `start`, `stop`: bytes, or for Parquet
    and Arrow row groups; `first_line`: 1-based, there the number of its first row; `header`: the
    column names, there only of those to read; `num_bytes`: how much work it is."""

    file: int
    path: str
    kind: Kind
    start: int
    stop: int
    first_line: int
    num_bytes: int
    header: tuple[str, ...] = ()


def cut_file(file: SourceFile, *, index: int, chunk_bytes: int) -> tuple[list[Chunk], list[tuple[int, str]]]:
    """Chunks of about `chunk_bytes`, and what is wrong with the file, as (line, message)."""
    chunks: list[Chunk] = []
    try:
        for chunk in _chunks(file, partial(Chunk, file=index, path=file.path), chunk_bytes):
            chunks.append(chunk)  # one by one: those before an error are kept
    except BrokenFileError as error:
        return chunks, [(error.line, str(error))]
    except OSError as error:
        return chunks, [(1, f"cannot be read: {error.strerror}")]
    return chunks, [] if chunks else [(1, "is empty; expected rows")]


Make = Callable[..., Chunk]


def _chunks(file: SourceFile, make: Make, chunk_bytes: int) -> Iterator[Chunk]:
    with Path(file.path).open("rb") as opened:
        head = opened.read(64)
        if not head:
            return
        for magic, message in _FOREIGN:
            if head.startswith(magic):
                raise BrokenFileError(1, message)
        for kind, name in _NAMES.items():
            if head.startswith(columnar.MAGIC[kind]) != (file.kind == kind):
                is_not = f"is not {name} file" if file.kind == kind else f"is {name} file; name it with .{kind}"
                raise BrokenFileError(1, is_not)
        if file.kind in COLUMNAR:
            yield from _columnar(file, make)
            return
        start = 3 if head.startswith(b"\xef\xbb\xbf") else 0  # a byte order mark is no part of the first row
        opened.seek(start)
        kind, header = file.kind, ()
        if kind in DELIMITERS:
            kind = _separation(opened, kind, start)
            header, rows = _csv(opened, DELIMITERS[kind], start)
            places = _grouped(rows, chunk_bytes)
        else:
            kind = kind if kind == "txt" else json_kind(opened, kind, start)
            is_list = kind == "json"
            places = _grouped(json_list(opened, start), chunk_bytes) if is_list else _lines(opened, start, chunk_bytes)
        for begin, end, line in places:
            yield make(kind=kind, start=begin, stop=end, first_line=line, num_bytes=end - begin, header=header)


def _grouped(rows: Iterable[Place], chunk_bytes: int) -> Iterator[Place]:
    """Joins rows to places of about `chunk_bytes`; an error of `rows` comes after those before."""
    begin = end = line = 0
    broken: BrokenFileError | None = None
    try:
        for row_begin, row_end, row_line in rows:
            if begin == end:
                begin, line = row_begin, row_line
            end = row_end
            if end - begin >= chunk_bytes:
                yield begin, end, line
                begin = end
    except BrokenFileError as error:
        broken = error
    if end > begin:
        yield begin, end, line
    if broken is not None:
        raise broken


def _lines(opened: BinaryIO, start: int, chunk_bytes: int) -> Iterator[Place]:
    line = 1
    while block := opened.read(chunk_bytes):
        if not block.endswith(b"\n"):
            rest = opened.readline(MAX_ROW_BYTES)
            block += rest
            if len(rest) == MAX_ROW_BYTES and not rest.endswith(b"\n"):
                raise BrokenFileError(line + block.count(b"\n"), TOO_LONG)
        if not block.isspace():
            yield start, start + len(block), line
        start += len(block)
        line += block.count(b"\n")


def _separation(opened: BinaryIO, kind: Kind, start: int) -> Kind:
    """By what a header is cut: what the file's name says, else another mark that it has."""
    header = opened.readline(MAX_ROW_BYTES)
    opened.seek(start)
    if header.lower().startswith(b"sep="):
        raise BrokenFileError(1, "begins with a line of Excel's, sep=, and not with its columns' names; remove it")
    for cut in (kind, *DELIMITERS):
        if DELIMITERS[cut].encode() in header:
            return cut
    return kind


def _csv(opened: BinaryIO, delimiter: str, start: int) -> tuple[tuple[str, ...], Iterator[Place]]:
    csv.field_size_limit(MAX_ROW_BYTES)
    position = start

    def lines() -> Iterator[str]:
        nonlocal position
        while line := opened.readline(MAX_ROW_BYTES + 1):
            if len(line) > MAX_ROW_BYTES:
                raise BrokenFileError(reader.line_num + 1, TOO_LONG)
            position += len(line)
            yield line.decode("latin-1")

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)

    def next_row() -> list[str] | None:
        line = reader.line_num + 1
        try:
            return next(reader, None)
        except csv.Error as error:
            raise BrokenFileError(line, f"is not CSV: {error}; quote cells that hold quotes or line ends") from None

    def rows() -> Iterator[Place]:
        begin, line = position, reader.line_num + 1
        while next_row() is not None:
            yield begin, position, line
            begin, line = position, reader.line_num + 1

    return _header(next_row() or []), rows()


def _header(cells: list[str]) -> tuple[str, ...]:
    try:
        names = tuple(cell.encode("latin-1").decode("utf-8").strip() for cell in cells)
    except UnicodeDecodeError:
        raise BrokenFileError(1, "is not UTF-8 text; save the file as UTF-8") from None
    if not any(names):
        raise BrokenFileError(1, "has no header; the first line must name the columns")
    _refuse_twice(names)
    return names


def _refuse_twice(names: tuple[str, ...]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BrokenFileError(1, f"the column {twice[0]!r} stands twice; remove one")


def _columnar(file: SourceFile, make: Make) -> Iterator[Chunk]:
    import pyarrow as pa

    try:
        names, groups = columnar.groups(file.path, kind=file.kind)
    except (pa.ArrowException, OSError) as error:
        raise BrokenFileError(1, f"is not {_NAMES[file.kind]} file: {said(error)}") from None
    _refuse_twice(names)
    row = 1
    for group, (num_rows, num_bytes) in enumerate(groups):
        if num_rows:
            place = {"start": group, "stop": group + 1, "first_line": row, "num_bytes": max(1, num_bytes)}
            yield make(kind=file.kind, header=names, **place)
        row += num_rows
