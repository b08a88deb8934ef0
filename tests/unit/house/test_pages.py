"""Pages that are written by a tool are what it writes today."""

import pytest

from tests.unit.house.tree import run_python, text_of

#: Tool -> the pages that it writes.
PAGES = {
    "tools/matrix.py": ("support.md",),
    "tools/seeds.py": ("seeds.md",),
    "tools/reference.py": ("reference/cli.md", "reference/job.md", "reference/plan.md", "reference/run.md"),
    "tools/toy.py": ("learn/parallelism.md",),
}


@pytest.mark.parametrize("tool", PAGES)
def test_a_page_is_what_its_tool_writes(tool):
    compared = run_python(tool)
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize("page", [page for pages in PAGES.values() for page in pages])
def test_the_site_has_every_page(page):
    assert f": {page}\n" in text_of("mkdocs.yml")
