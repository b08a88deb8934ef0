"""Finds where each element of a JSON array begins and ends, without ever holding the array.

Strangers write the files, so the window has a bound: an element may be as long as a row may be, and no longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO

#: A row is one training example; beyond this it is a mistake, and a parser's memory must have a bound.
MAX_ROW_BYTES = 16 * 1024 * 1024

TOO_LONG = f"this row is longer than {MAX_ROW_BYTES // 1024**2} MiB; a row holds one training example"

_SPACE = re.compile(r"[ \t\r\n]*")


class BrokenFileError(Exception):
    """The file's syntax is lost at a line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class Elements:
    """The elements of a JSON array as (first byte, byte after the last, line), through a window that slides."""

    def __init__(self, opened: BinaryIO, start: int) -> None:
        self._opened = opened
        self._base = start
        self._text = ""
        self._at = 0
        self._line = 1
        self._counted = 0
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        self._expect("[")
        if self._peek() == "]":
            raise BrokenFileError(self._line_at(self._at), "is an empty list; expected rows")
        while True:
            self._peek()
            begin, line = self._base + self._at, self._line_at(self._at)
            self._at = self._element_end(line)
            yield begin, self._base + self._at, line
            if self._expect(",]") == "]":
                break
            self._slide()
        if self._peek():
            raise BrokenFileError(self._line_at(self._at), "goes on after the list's closing bracket; remove the rest")

    def _peek(self) -> str:
        """The next character that is not white space, or "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def _expect(self, characters: str) -> str:
        found = self._peek()
        if not found or found not in characters:
            what = f"found {found!r}" if found else "the file ends here"
            message = f"is not JSON: {what}; expected {' or '.join(repr(c) for c in characters)}"
            raise BrokenFileError(self._line_at(self._at), message)
        self._at += 1
        return found

    def _element_end(self, line: int) -> int:
        while True:
            try:
                _, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._fill():
                    where = self._line_at(min(error.pos, len(self._text)))
                    raise BrokenFileError(where, f"is not JSON: {error.msg}") from None
            except (RecursionError, ValueError) as error:
                raise BrokenFileError(line, f"cannot be read: {nesting_or(error)}") from None
            else:
                if end < len(self._text) or not self._fill():
                    return end
            if len(self._text) - self._at > MAX_ROW_BYTES:
                raise BrokenFileError(line, f"is not JSON, or {TOO_LONG}")

    def _fill(self) -> bool:
        """Widens the window by as much again, so that repeated tries on one element cost no more than its length."""
        block = self._opened.read(max(1 << 20, len(self._text) - self._at))
        self._text += block.decode("latin-1")
        return bool(block)

    def _slide(self) -> None:
        if self._at > 1 << 20:
            self._line_at(self._at)
            self._base += self._at
            self._text = self._text[self._at :]
            self._at = self._counted = 0

    def _line_at(self, position: int) -> int:
        """The line of a position of the window at or after the last one asked for."""
        self._line += self._text.count("\n", self._counted, position)
        self._counted = max(self._counted, position)
        return self._line


def nesting_or(error: Exception) -> str:
    """A parser's error in words; Python's own message about recursion speaks of the parser, not of the file."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
