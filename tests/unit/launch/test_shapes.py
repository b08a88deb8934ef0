"""The process that builds a model: what it answers, and what is said where it ends otherwise."""

import os
import sys
from pathlib import Path

import pytest

from shardwise.errors import ModelError
from shardwise.launch.processes import torch_helpers
from shardwise.launch.processes.torch_helpers import built_shape

CONFIG = {"model_type": "stranger"}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that stands in for the one that builds."""
    paths = [str(tmp_path), *filter(None, sys.path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(torch_helpers, "MODEL_SHAPE", "standin")
    return tmp_path / "standin.py"


def test_what_is_not_understood_is_said_at_the_file(program: Path) -> None:
    program.write_text(
        "import json, sys; json.dump({'refused': [json.load(sys.stdin)['file'] + ' is odd']}, sys.stdout)"
    )
    with pytest.raises(ModelError, match=r"^m/config\.json: m/config\.json is odd$"):
        built_shape(CONFIG, file="m/config.json")


def test_a_build_that_fails_says_its_last_words(program: Path) -> None:
    program.write_text("raise MemoryError('no room')")
    with pytest.raises(ModelError, match=r"'stranger' has no row .*, and building it failed: MemoryError: no room"):
        built_shape(CONFIG, file="f")


def test_a_build_that_does_not_end_is_ended(program: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch_helpers, "LIMIT_SECONDS", 0.5)
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(ModelError, match=r"has no row in the catalogue, and building it took more than 0\.5 s"):
        built_shape(CONFIG, file="f")
