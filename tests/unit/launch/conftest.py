from pathlib import Path

import pytest

from shardwise.spec.run import RunDirectory
from tests.unit.fakes import Maker, module_maker


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    directory.logs.mkdir(parents=True)
    return directory


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    return module_maker(tmp_path / "modules", monkeypatch)
