"""The tree is the first page of documentation."""

import ast
import re

import pytest

from tests.unit.house.tree import ROOT, SOURCE, run_python, text_of, tracked_files

#: In pieces, so that this file does not hold what it forbids.
PLACES_OF_ONE_MACHINE = ("/wo" + "rk/", "/ro" + "ot/", "/op" + "t/pypi", "/op" + "t/wheels")
REGISTRY_HOSTS = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "download.py" + "torch.org",
)

PACKAGES = sorted({path.parent.relative_to(SOURCE.parent).as_posix() for path in SOURCE.rglob("*.py")})


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_source_file_says_why_it_exists(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_names_every_package(package):
    assert f"**`{package}/`**" in text_of("ARCHITECTURE.md")


def test_the_list_of_files_in_the_architecture_is_the_tree():
    compared = run_python("tools/tree.py")
    assert compared.returncode == 0, compared.stderr


def test_every_floor_stands_on_the_first_screen_of_the_architecture():
    first_screen = text_of("ARCHITECTURE.md").partition("## Every file")[0]
    names = {name.split("/")[1] for name in PACKAGES if "/" in name} | {"api", "errors", "units"}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", first_screen)) == []


def test_the_list_of_files_finds_a_file_that_is_not_listed(tmp_path):
    script = text_of("tools/tree.py").replace("Path(__file__).parent.parent", f"Path({str(tmp_path)!r})")
    (tmp_path / "src/shardwise").mkdir(parents=True)
    (tmp_path / "src/shardwise/__init__.py").write_text('"""A package."""', encoding="utf-8")
    (tmp_path / "ARCHITECTURE.md").write_text(text_of("ARCHITECTURE.md"), encoding="utf-8")
    (tmp_path / "tree.py").write_text(script, encoding="utf-8")
    assert run_python(tmp_path / "tree.py").returncode == 1
    assert run_python(tmp_path / "tree.py", "--write").returncode == 0
    assert run_python(tmp_path / "tree.py").returncode == 0


@pytest.mark.parametrize("forbidden", PLACES_OF_ONE_MACHINE + REGISTRY_HOSTS)
def test_no_tracked_file_names_a_place_of_one_machine_or_a_registry(forbidden):
    holders = [path for path in tracked_files() if forbidden.encode() in path.read_bytes()]
    assert [str(path.relative_to(ROOT)) for path in holders] == []
