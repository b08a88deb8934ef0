"""The published support matrix is what the rules say."""

from tests.unit.house.tree import run_python, text_of


def test_the_support_matrix_is_what_the_rules_say():
    compared = run_python("tools/matrix.py")
    assert compared.returncode == 0, compared.stderr


def test_the_readme_names_the_support_matrix():
    assert "docs/support.md" in text_of("README.md")
