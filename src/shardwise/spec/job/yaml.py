"""YAML with the line of every key and item.

A job file may come from a stranger: tags, anchors, aliases and duplicate keys are refused, and size
and depth limited.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from shardwise.errors import JobError, Problem, quoted, said
from shardwise.spec.job.places import Key, Places, dotted

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32


@dataclass(frozen=True, kw_only=True)
class Located:
    """Plain data (dict, list, str, number, bool, None) and the `file:line` of each key and item."""

    value: Any
    places: Places


def parse_yaml(text: str, *, file: str) -> Located:
    """Reads a YAML document. Raises JobError with `file:line`: broken, or what is refused."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text.encode("utf-8", errors="replace")) > MAX_BYTES:
        raise JobError.at(f"{file}:1", f"larger than {MAX_BYTES} bytes; a job file is a page of text")
    if text.startswith("version https://git-lfs"):
        raise JobError.at(f"{file}:1", "this is a Git LFS pointer, not the file; run `git lfs pull`")
    yaml: Any = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        marked: Any = error
        mark: Any = marked.problem_mark or marked.context_mark
        line: int = mark.line + 1 if mark is not None else 1
        what = " ".join(str(part) for part in (marked.context, marked.problem) if part)
        raise JobError.at(f"{file}:{line}", f"not valid YAML: {what}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise JobError.at(f"{file}:1", f"not valid YAML: {said(error)}") from None
    reader = _Reader(file=file, yaml=yaml)
    value = reader.read(root, ()) if root is not None else None
    if reader.problems:
        raise JobError(reader.problems)
    return Located(value=value, places=Places(by_key=reader.places, file=file))


class _Reader:
    """Turns composed YAML nodes into plain data while noting lines."""

    def __init__(self, *, file: str, yaml: Any) -> None:
        self.file = file
        self.yaml = yaml
        self.places: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._seen: set[int] = set()

    def read(self, node: Any, path: Key) -> Any:
        line: int = node.start_mark.line + 1
        self.places.setdefault(dotted(path), f"{self.file}:{line}")
        if id(node) in self._seen or node.anchor:
            return self._refuse(line, "anchors and aliases (& and *) are not read; write the value out")
        self._seen.add(id(node))
        if len(path) > MAX_DEPTH:
            return self._refuse(line, f"nested deeper than {MAX_DEPTH} levels")
        if node.id == "mapping":
            return dict(self._entries(node, path))
        if node.id == "sequence":
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, line)

    def _entries(self, node: Any, path: Key) -> Iterator[tuple[str, Any]]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line: int = key_node.start_mark.line + 1
            if key_node.id != "scalar":
                self._refuse(line, "a key must be a plain word")
                continue
            key = str(key_node.value)
            if key in seen:
                self._refuse(line, f"the key {quoted(key)} stands twice (first on line {seen[key]}); remove one")
                continue
            seen[key] = line
            self.places[dotted((*path, key))] = f"{self.file}:{line}"
            yield key, self.read(value_node, (*path, key))

    def _scalar(self, node: Any, line: int) -> Any:
        tag = str(node.tag)
        if not tag.startswith("tag:yaml.org,2002:") or tag.rpartition(":")[2] not in _PLAIN_TAGS:
            own = tag.removeprefix("tag:yaml.org,2002:")
            return self._refuse(line, f"the YAML tag {own!r} is not read; write plain values")
        if tag.endswith((":timestamp", ":binary")):
            return cast(str, node.value)
        try:
            return self.yaml.constructor.construct_object(node, deep=True)
        except (ValueError, TypeError) as error:
            return self._refuse(line, f"{quoted(node.value)} is not a value: {error}")

    def _refuse(self, line: int, message: str) -> None:
        self.problems.append(Problem(where=f"{self.file}:{line}", message=message))


_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "timestamp"}
