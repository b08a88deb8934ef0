"""What the documents promise is there, and what is there is in the documents."""

import re

from shardwise.cli.main import VERBS
from tests.unit.house.tree import ROOT, text_of

TARGETS = re.findall(r"^([a-z][a-z-]*):.*## ", text_of("Makefile"), flags=re.MULTILINE)


def test_the_readme_shows_every_verb_and_no_other():
    readme, verbs = text_of("README.md"), {verb.__name__ for verb in VERBS}
    assert [verb for verb in verbs if f"shardwise {verb}" not in readme] == []
    assert set(re.findall(r"(?:^|`)shardwise ([a-z]+)", readme, flags=re.MULTILINE)) <= verbs


def test_the_contributing_page_names_every_make_target():
    assert {"help", "demo", "test", "test-all", "check", "docs", "bench", "clean"} <= set(TARGETS)
    assert [target for target in TARGETS if f"`make {target}`" not in text_of("CONTRIBUTING.md")] == []


def test_no_document_names_a_make_target_that_does_not_exist():
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    documents = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", ".ci/run", *pages)
    named = {
        target
        for name in documents
        for target in re.findall(r"(?:^|`)make ([a-z-]+)\b", text_of(name), flags=re.MULTILINE)
    }
    assert named <= set(TARGETS)


def test_continuous_integration_runs_the_readme_commands():
    script = text_of(".ci/run")
    assert "set -euo pipefail" in script
    for command in ("make check", "make test", "make demo", "make docs"):
        assert re.search(rf"^step {command}\b", script, flags=re.MULTILINE)


def test_the_constraints_pin_torch_without_a_build_and_every_other_version_exactly():
    lines = [line for line in text_of("constraints.txt").splitlines() if not line.startswith("#")]
    assert "torch==2.13.0" in lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line)] == []
