"""Pages that are written by a tool are what it writes today."""

import pytest

from tests.unit.house.tree import run_python, text_of

#: Tool -> the pages that it writes.
PAGES = {
    "tools/matrix.py": ("support.md",),
    "tools/seeds.py": ("seeds.md",),
    "tools/reference.py": ("reference/cli.md", "reference/job.md", "reference/plan.md", "reference/run.md"),
    "tools/gpu.py": ("how/measured.md",),
    "tools/toy.py": ("learn/parallelism.md",),
}


@pytest.mark.parametrize("tool", PAGES)
def test_a_page_is_what_its_tool_writes(tool):
    compared = run_python(tool)
    assert compared.returncode == 0, compared.stderr
    assert [page for page in PAGES[tool] if f": {page}\n" not in text_of("mkdocs.yml")] == []
