"""Pages that are written by a tool are what it writes today."""

import pytest

from tests.unit.house.tree import run_python, text_of

PAGES = {"tools/matrix.py": "docs/support.md", "tools/seeds.py": "docs/seeds.md"}


@pytest.mark.parametrize("tool", PAGES)
def test_a_page_is_what_its_tool_writes(tool):
    compared = run_python(tool)
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize("page", PAGES.values())
def test_the_readme_names_every_page(page):
    assert page in text_of("README.md")
