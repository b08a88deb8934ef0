"""The pure wing runs where torch is not installed."""

from tests.unit.house.tree import run_python


def test_the_pure_wing_imports_where_the_libraries_of_the_torch_wing_cannot_be():
    checked = run_python("tools/check_pure_wing.py")
    assert checked.returncode == 0, checked.stderr


def test_the_verbs_import_without_torch_and_templates_are_imported_for_pages_only():
    code = "import shardwise.api, shardwise.cli.main, sys; assert not {'torch', 'jinja2'} & set(sys.modules)"
    checked = run_python("-c", code)
    assert checked.returncode == 0, checked.stderr
