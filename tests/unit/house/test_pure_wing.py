"""The pure wing runs where torch is not installed."""

import ast
from pathlib import Path

from shardwise import api
from tests.unit.house.tree import run_python


def test_the_pure_wing_imports_where_the_libraries_of_the_torch_wing_cannot_be():
    checked = run_python("tools/check_pure_wing.py")
    assert checked.returncode == 0, checked.stderr


def test_the_verbs_import_without_torch_and_templates_are_imported_for_pages_only():
    code = "from shardwise import api; import shardwise.cli.main, sys; [getattr(api, name) for name in api.MODULES]; "
    checked = run_python("-c", code + "assert not {'torch', 'jinja2'} & set(sys.modules)")
    assert checked.returncode == 0, checked.stderr


def test_a_name_of_the_api_is_imported_from_where_checkers_of_types_see_it():
    tree = ast.walk(ast.parse(Path(api.__file__).read_text(encoding="utf-8")))
    seen = [node for node in tree if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwise")]
    assert {one.name: node.module for node in seen for one in node.names} == {
        name: f"shardwise.{module}" for name, module in api.MODULES.items()
    }
