"""Ceilings of lines, which a change lowers, or raises with its reason."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.unit.house.tree import ROOT

SOURCE, TESTS = ROOT / "src/shardwise", ROOT / "tests"

#: Lines of each package at most, and of all of the package and of the tests.
CEILINGS = {
    "": 230,
    "api": 2920,
    "catalog": 3200,
    "cli": 1790,
    "data": 4880,
    "interop": 1380,
    "launch": 2850,
    "methods": 390,
    "models": 3520,
    "parallel": 3080,
    "plan": 8550,
    "programs": 211,
    "report": 2270,
    "spec": 5660,
    "train": 9330,
    "web": 1320,
}
ALL, ALL_TESTS = 51500, 32730

#: Modules of a folder at most, `__init__.py` among them.
FILES = 16

#: Characters of a line of a comment or docstring at most.
COLUMNS = 100

#: Modules that share a file name at most, but for those that have another's name: `plan/costs`
#: counts what a file of `parallel` runs, and `programs` start what is called so.
SHARED, NAMED_AFTER_OTHERS = 2, ("plan/costs", "programs")


@cache
def modules(folder: Path) -> dict[Path, tuple[list[str], ast.Module]]:
    """The lines and the tree of every module below a folder."""
    texts = {path.relative_to(folder): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    return {path: (text.splitlines(), ast.parse(text)) for path, text in texts.items()}


def lines_of(folder: Path) -> Counter[str]:
    """Lines of each package; files beside packages count as one."""
    found = Counter[str]()
    for path, (lines, _) in modules(folder).items():
        found[path.parts[0] if len(path.parts) > 1 else ""] += len(lines)
    return found


def test_no_package_is_larger_than_its_ceiling() -> None:
    found = lines_of(SOURCE)
    assert {name: lines for name, lines in found.items() if lines > CEILINGS.get(name, 0)} == {}
    assert found.total() <= ALL
    assert lines_of(TESTS).total() <= ALL_TESTS


def test_no_folder_has_many_files() -> None:
    found = Counter(path.parent for path in modules(SOURCE))
    assert {folder: files for folder, files in found.items() if files > FILES} == {}


def said(lines: list[str], tree: ast.Module) -> Iterator[str]:
    """The lines that are a comment or belong to a docstring."""
    yield from (line for line in lines if line.lstrip().startswith("#"))
    nodes: list[ast.Module | ast.ClassDef | ast.FunctionDef] = [tree]
    while nodes:
        body = nodes.pop().body
        nodes += [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        match body[:1]:
            case [ast.Expr(value=ast.Constant(value=str())) as docstring]:
                yield from lines[docstring.lineno - 1 : docstring.end_lineno]
            case _:
                pass


def test_no_comment_or_docstring_is_too_long() -> None:
    every = (line for folder in (SOURCE, TESTS) for one in modules(folder).values() for line in said(*one))
    assert [line for line in every if len(line) > COLUMNS] == []


def test_no_two_public_classes_have_one_name() -> None:
    classes = (node for _, tree in modules(SOURCE).values() for node in tree.body if isinstance(node, ast.ClassDef))
    found = Counter(node.name for node in classes if not node.name.startswith("_"))
    assert [name for name, count in found.items() if count > 1] == []


def test_few_modules_share_a_file_name() -> None:
    found = defaultdict[str, list[str]](list)
    for path in map(Path.as_posix, modules(SOURCE)):
        if not (path.endswith("__.py") or path.startswith(NAMED_AFTER_OTHERS)):
            found[Path(path).name].append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > SHARED} == {}


def test_what_costs_count_is_run_by_a_file_or_folder_of_that_name() -> None:
    run = {name for path in modules(SOURCE / "parallel") for name in (path.stem, *path.parts)}
    counted = {path.stem for path in modules(SOURCE / "plan/costs")}
    assert counted - run == {"autocast", "loss", "products", "piece"}
