"""Cuts a file into chunks of whole rows, so that workers parse in parallel and no process holds a file in memory.

Cutting reads each file once, at disk speed for JSONL, and keeps nothing but offsets and line numbers. Bytes are read
as Latin-1 here: it maps each byte to one character and JSON and CSV syntax is ASCII, so character offsets are byte
offsets.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from shardwise.data.elements import MAX_ROW_BYTES, TOO_LONG, BrokenFileError, Elements
from shardwise.data.sources import Kind, SourceFile
from shardwise.errors import said

DELIMITERS = {"csv": ",", "tsv": "\t"}

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


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows of one file.

    Attributes:
        file: index of the file among all files of the preparation.
        start, stop: byte range; for Parquet, a range of row groups.
        first_line: 1-based line of `start`; for Parquet, the number of its first row.
        header: the column names of a CSV or Parquet file; of Parquet, only these are read.
        num_bytes: how much work it is, for progress.
    """

    file: int
    path: str
    kind: Kind
    start: int
    stop: int
    first_line: int
    num_bytes: int
    header: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Cut:
    """A file's chunks, and what is wrong with the file beyond them, as (line, message)."""

    chunks: list[Chunk] = field(default_factory=list)
    problems: list[tuple[int, str]] = field(default_factory=list)


def cut_file(file: SourceFile, *, index: int, chunk_bytes: int) -> Cut:
    """Chunks of about `chunk_bytes`; a file that cannot be cut yields its problem instead of raising."""
    cut = Cut()
    try:
        for span in _spans(file, chunk_bytes):
            cut.chunks.append(
                Chunk(
                    file=index,
                    path=file.path,
                    kind=span.kind,
                    start=span.start,
                    stop=span.stop,
                    first_line=span.line,
                    num_bytes=span.num_bytes or span.stop - span.start,
                    header=span.header,
                )
            )
    except BrokenFileError as error:
        cut.problems.append((error.line, str(error)))
    except OSError as error:
        cut.problems.append((1, f"cannot be read: {error.strerror}"))
    if not cut.chunks and not cut.problems:
        cut.problems.append((1, "is empty; expected rows"))
    return cut


@dataclass(frozen=True, kw_only=True)
class _Span:
    kind: Kind
    start: int
    stop: int
    line: int
    num_bytes: int = 0
    header: tuple[str, ...] = ()


def _spans(file: SourceFile, chunk_bytes: int) -> Iterator[_Span]:
    with Path(file.path).open("rb") as opened:
        head = opened.read(64)
    if not head:
        raise BrokenFileError(1, "is empty; expected rows")
    if head.startswith(b"PAR1") != (file.kind == "parquet"):
        message = "is not a Parquet file" if file.kind == "parquet" else "is a Parquet file; name it with .parquet"
        raise BrokenFileError(1, message)
    for magic, message in _FOREIGN:
        if head.startswith(magic):
            raise BrokenFileError(1, message)
    yield from _parquet(file) if file.kind == "parquet" else _text(file, chunk_bytes)


def _text(file: SourceFile, chunk_bytes: int) -> Iterator[_Span]:
    with Path(file.path).open("rb") as opened:
        start = 3 if opened.read(3) == b"\xef\xbb\xbf" else 0  # a byte order mark is no part of the first row
        opened.seek(start)
        if file.kind in DELIMITERS:
            yield from _csv(opened, file.kind, start, chunk_bytes)
        elif file.kind == "json" and _holds_array(opened, start):
            yield from _array(opened, start, chunk_bytes)
        else:
            yield from _lines(opened, start, chunk_bytes)


def _holds_array(opened: BinaryIO, start: int) -> bool:
    """Whether a .json file is a list of rows; else it must be one object per line, as many data sets on the hub are."""
    line = b"\n"
    while line and not line.strip():
        line = opened.readline(MAX_ROW_BYTES)
    opened.seek(start)
    if line.lstrip().startswith(b"["):
        return True
    try:
        json.loads(line or b"{}")
    except (ValueError, RecursionError):
        raise BrokenFileError(1, "is neither a list of rows ([{...}, ...]) nor one whole object per line") from None
    return False


def _lines(opened: BinaryIO, start: int, chunk_bytes: int) -> Iterator[_Span]:
    line = 1
    while block := opened.read(chunk_bytes):
        if not block.endswith(b"\n"):
            rest = opened.readline(MAX_ROW_BYTES)
            block += rest
            if len(rest) == MAX_ROW_BYTES and not rest.endswith(b"\n"):
                raise BrokenFileError(line + block.count(b"\n"), TOO_LONG)
        if block.strip():
            yield _Span(kind="jsonl", start=start, stop=start + len(block), line=line)
        start += len(block)
        line += block.count(b"\n")


class _CountedLines:
    """Lines as Latin-1 text, with the bytes and lines handed out so far."""

    def __init__(self, opened: BinaryIO, start: int) -> None:
        self._opened = opened
        self.position = start
        self.line = 1

    def __iter__(self) -> Iterator[str]:
        while line := self._opened.readline(MAX_ROW_BYTES + 1):
            if len(line) > MAX_ROW_BYTES:
                raise BrokenFileError(self.line, TOO_LONG)
            self.position += len(line)
            self.line += 1
            yield line.decode("latin-1")


def _csv(opened: BinaryIO, kind: Kind, start: int, chunk_bytes: int) -> Iterator[_Span]:
    csv.field_size_limit(MAX_ROW_BYTES)
    lines = _CountedLines(opened, start)
    reader = csv.reader(lines, delimiter=DELIMITERS[kind], strict=True)
    header: tuple[str, ...] = ()
    stop = start  # after the last row that is whole
    row_line = line = 1
    broken = None
    try:
        header = _header(next(reader, []))
        start, line = stop, row_line = lines.position, lines.line
        for _ in reader:
            stop, row_line = lines.position, lines.line
            if stop - start >= chunk_bytes:
                yield _Span(kind=kind, start=start, stop=stop, line=line, header=header)
                start, line = stop, row_line
    except csv.Error as error:
        broken = BrokenFileError(row_line, f"is not CSV: {error}; quote cells that hold quotes or line ends")
    except BrokenFileError as error:
        broken = error
    if header and stop > start:
        yield _Span(kind=kind, start=start, stop=stop, line=line, header=header)
    if broken:
        raise broken


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


def _array(opened: BinaryIO, start: int, chunk_bytes: int) -> Iterator[_Span]:
    first: tuple[int, int] | None = None
    stop = start
    broken = None
    try:
        for begin, end, line in Elements(opened, start):
            first = first or (begin, line)
            stop = end
            if stop - first[0] >= chunk_bytes:
                yield _Span(kind="json", start=first[0], stop=stop, line=first[1])
                first = None
    except BrokenFileError as error:
        broken = error
    if first is not None:
        yield _Span(kind="json", start=first[0], stop=stop, line=first[1])
    if broken:
        raise broken


def _parquet(file: SourceFile) -> Iterator[_Span]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path) as opened:
            metadata, names = opened.metadata, tuple(opened.schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise BrokenFileError(1, f"is not a Parquet file: {said(error)}") from None
    _refuse_twice(names)
    row = 1
    for group in range(metadata.num_row_groups):
        details = metadata.row_group(group)
        if details.num_rows:
            num_bytes = max(1, details.total_byte_size)
            yield _Span(kind="parquet", start=group, stop=group + 1, line=row, num_bytes=num_bytes, header=names)
        row += details.num_rows
