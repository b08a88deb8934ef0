"""Tests that nobody collects prove nothing."""

import pytest

from tests.unit.house.tree import ROOT, run_python


@pytest.mark.slow
def test_every_test_file_is_collected_by_the_suite_as_make_calls_it():
    collected = run_python("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    missing = sorted(file for file in files if f"{file}::" not in collected.stdout)
    assert missing == [], collected.stderr
