"""JSON files: whether one is a list of rows or a row per line, and where the rows of a list lie."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from shardwise.data.read.formats import recognise
from shardwise.data.read.messages import RowError
from shardwise.data.read.sources import Kind
from shardwise.units import GIB, MIB

#: A row is one training example; a longer one is refused.
MAX_ROW_BYTES = 16 * MIB
TOO_LONG = f"this row is longer than {MAX_ROW_BYTES // MIB} MiB; a row holds one training example"
#: A JSON list is cut in memory; larger sets are stored one object per line.
MAX_LIST_BYTES = 4 * GIB

#: Begin, end and 1-based line of a row, or of several, in bytes.
Place = tuple[int, int, int]


class BrokenFileError(Exception):
    """What is wrong with a file from a line on."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def json_kind(opened: BinaryIO, kind: Kind, start: int) -> Kind:
    """Whether it is one list of rows (json) or an object per line (jsonl), whatever its name: many
    data sets on the hub are lines called .json. Raises BrokenFileError: it is neither."""
    line = b"\n"
    while line and not line.strip():
        line = opened.readline(MAX_ROW_BYTES)
    is_list = line.lstrip().startswith(b"[")
    first = None if is_list else _loaded(line)
    if isinstance(first, dict) and not opened.readline(MAX_ROW_BYTES).strip():
        _refuse_table(first)
    opened.seek(start)
    if kind == "json" and line and not is_list and first is None:
        _refuse_table(_loaded(opened.read(MAX_LIST_BYTES)))
        raise BrokenFileError(1, "is neither a list of rows ([{...}, ...]) nor one whole object per line")
    return "json" if is_list else "jsonl"


def _loaded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _refuse_table(held: Any) -> None:
    """Raises BrokenFileError: a file's one object holds rows under a key, or columns."""
    if not isinstance(held, dict) or not any(held.values()):
        return
    for key, value in held.items():
        with suppress(RowError):
            if isinstance(value, list) and value and isinstance(value[0], dict) and recognise(tuple(value[0])):
                raise BrokenFileError(1, f"has its rows under the key {key!r}; write that list alone")
    firsts = [value[0] for value in held.values() if value and isinstance(value, list)]
    of_objects = any(isinstance(first, dict) for first in firsts)  # messages or tools: it is a row
    if all(isinstance(value, list | dict) for value in held.values()) and not of_objects:
        message = "holds columns, not rows; write a list of rows ([{...}, ...]), in pandas to_json(orient='records')"
        raise BrokenFileError(1, message)


_SPACE = re.compile(r"[ \t\r\n]*")


def json_list(opened: BinaryIO, start: int) -> Iterator[Place]:
    """The elements of a JSON list."""
    raw = opened.read(MAX_LIST_BYTES + 1)
    if len(raw) > MAX_LIST_BYTES:
        raise BrokenFileError(
            1, f"is a list of more than {MAX_LIST_BYTES // GIB} GiB; write one object per line (.jsonl)"
        )
    text = raw.decode("latin-1")
    at, line, counted = after_space(text, text.index("[") + 1), 1, 0
    if text.startswith("]", at):
        raise _broken(text, at, "is an empty list; expected rows")
    found = ","
    while found == ",":
        line, counted = line + text.count("\n", counted, at), at
        end = _element_end(text, at, line=line)
        yield start + at, start + end, line
        at = after_space(text, end)
        found = text[at : at + 1]
        if found not in (",", "]"):
            what = f"found {found!r}" if found else "the file ends here"
            raise _broken(text, at, f"is not JSON: {what}; expected ',' or ']'")
        at = after_space(text, at + 1)
    if at < len(text):
        raise _broken(text, at, "goes on after the list's closing bracket; remove the rest")


def after_space(text: str, at: int) -> int:
    """Where JSON goes on behind the space at `at`."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _broken(text: str, at: int, message: str) -> BrokenFileError:
    return BrokenFileError(text.count("\n", 0, at) + 1, message)


def _element_end(text: str, at: int, *, line: int) -> int:
    try:
        _, end = json.JSONDecoder().raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _broken(text, error.pos, f"is not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise BrokenFileError(line, f"cannot be read: {nesting_or(error)}") from None
    if end - at > MAX_ROW_BYTES:
        raise BrokenFileError(line, TOO_LONG)
    return end


def nesting_or(error: Exception) -> str:
    """A parser's error; Python's own message about recursion does not speak of the file."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
