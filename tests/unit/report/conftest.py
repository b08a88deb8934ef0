"""A run directory that was begun, and one of a whole run that went well."""

from pathlib import Path

import pytest

from shardwise.spec.run import RunDirectory
from tests.unit.report.runs import RunMaker, finished_run


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(root=tmp_path / "run").planned().prepared().started()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return finished_run(tmp_path / "run")
