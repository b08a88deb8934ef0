"""The documentation site builds with every link checked, and asks for nothing from outside."""

import os
import re
import subprocess
import sys

import pytest

from shardwise.report.pages.render import static_text
from tests.unit.house.tree import ROOT, run_python

LONGEST_PAGE = 150
#: Written by a tool from a table of sources, one paragraph or line for each.
EXCEPTIONS = ("accuracy.md", "families.md", "measured.md", "cli.md", "job.md", "plan.md")


@pytest.mark.rare  # CI runs `make docs`
def test_the_site_builds_with_every_link_checked(tmp_path):
    pytest.importorskip("material", reason="the docs extra is not installed; `make docs` installs it")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_PLANNER": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    built = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert built.returncode == 0, built.stderr
    assert len(sorted(tmp_path.rglob("*.html"))) > 30


def test_a_page_that_loads_something_from_outside_is_refused():
    pytest.importorskip("mkdocs")
    refused = "<p>words</p><script async src=https://example.org/x.js></script>"
    code = "import types, site_hooks as hooks\n"
    code += "place = types.SimpleNamespace\npage = place(file=place(src_uri='p.md'))\n"
    code += f"hooks.on_post_page('<a href=https://example.org>', page=page); hooks.on_post_page({refused!r}, page=page)"
    done = run_python("-c", f"import sys; sys.path.insert(0, 'tools')\n{code}")
    assert "p.md loads something from outside: <script async src=https://example.org/x.js>" in done.stderr


def test_no_picture_loads_from_outside_and_all_show_what_is_said_today() -> None:
    outside = re.compile(r"url\(.?https?:|href=.https?:")
    pictures = (ROOT / "docs").rglob("*.svg")
    assert [path.name for path in pictures if outside.search(path.read_text(encoding="utf-8"))] == []
    compared = run_python("tools/pictures.py")
    assert compared.returncode == 0, compared.stdout + compared.stderr


def test_no_page_is_long():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in EXCEPTIONS]
    assert [path.name for path in pages if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST_PAGE] == []
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_PAGE


def test_documents_have_the_colours_of_the_programs_pages():
    own = (ROOT / "docs/style.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", static_text("page.css"), flags=re.DOTALL)[:2]
    for scheme, theirs in (("default", light), ("slate", dark)):
        ours = re.search(rf'scheme="{scheme}"\] \{{(.*?)\}}', own, flags=re.DOTALL)[1]
        colours = dict(re.findall(r"--(\w+): (#\w+)", theirs))
        for name, colour in (("default-bg", "page"), ("code-bg", "panel"), ("accent-fg", "accent")):
            assert f"--md-{name}-color: {colours[colour]};" in ours
        assert f"--md-typeset-color: {colours['ink']};" in ours
