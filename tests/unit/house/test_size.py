"""The package stays as large and as plain as it is: ceilings that a later change lowers, or raises with its reason."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.unit.house.tree import ROOT

SOURCE, TESTS = ROOT / "src/shardwise", ROOT / "tests"

#: Lines of each package at most, and of all of them and of the tests.
CEILINGS = {
    "api": 2900,
}
ALL, ALL_TESTS = 45300, 31300

#: Lines of comments and docstrings that are longer than `COLUMNS`, of the package and of the tests: they become fewer.
COLUMNS, LONG, LONG_OF_TESTS = 100, 2110, 360

#: Modules that share a file name at most. `plan/costs` has the names of `parallel`, for it counts what that runs, and
#: `programs` those of what they start.
SHARED, APART = 2, ("plan/costs", "programs")


@cache
def modules(folder: Path) -> dict[Path, str]:
    """The text of every module below a folder."""
    return {path.relative_to(folder): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def lines_by_package(folder: Path) -> Counter[str]:
    """Lines of each package; files beside packages count as one."""
    found = Counter[str]()
    for path, text in modules(folder).items():
        found[path.parts[0] if len(path.parts) > 1 else ""] += text.count("\n")
    return found


def test_no_package_is_larger_than_its_ceiling() -> None:
    found = lines_by_package(SOURCE)
    assert {name: lines for name, lines in found.items() if lines > CEILINGS.get(name, 0)} == {}
    assert found.total() <= ALL
    assert lines_by_package(TESTS).total() <= ALL_TESTS


def test_no_ceiling_is_higher_than_it_needs_to_be() -> None:
    found = lines_by_package(SOURCE)
    assert {name: lines for name, lines in CEILINGS.items() if lines > found[name] + 300} == {}, "lower them"


def said(text: str) -> Iterator[int]:
    """The numbers of lines with comments or docstrings, each once."""
    found = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        match body[0] if isinstance(body, list) and body else None:
            case ast.Expr(value=ast.Constant(value=str())) as docstring:
                found.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    yield from found


def num_long(folder: Path) -> int:
    """Comments and docstrings that are longer than `COLUMNS`."""
    texts = ((text.splitlines(), said(text)) for text in modules(folder).values())
    return sum(len(lines[number - 1]) > COLUMNS for lines, numbers in texts for number in numbers)


def test_no_more_comments_and_docstrings_are_too_long() -> None:
    assert num_long(SOURCE) <= LONG
    assert num_long(TESTS) <= LONG_OF_TESTS


def test_no_two_public_classes_have_one_name() -> None:
    found = Counter(
        node.name
        for text in modules(SOURCE).values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 1] == []


def test_few_modules_share_a_file_name() -> None:
    found = defaultdict[str, list[str]](list)
    for path in modules(SOURCE):
        if path.stem not in ("__init__", "__main__") and not path.as_posix().startswith(APART):
            found[path.stem].append(path.as_posix())
    assert {stem: paths for stem, paths in found.items() if len(paths) > SHARED} == {}
