"""The program in this process: what it prints and how it exits."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from shardwise.cli.main import main
from tests.unit.counting import asked, chat_model, rows

__all__ = ["asked", "chat_model", "rows"]


@dataclass(frozen=True, kw_only=True)
class Said:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Shardwise:
    """The program: called with a command line."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: object) -> Said:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = self.capsys.readouterr()
        return Said(code=int(caught.value.code or 0), out=captured.out, err=captured.err)

    def refused(self, *arguments: object) -> str:
        """What it says of bad input, beside which it prints nothing."""
        said = self(*arguments)
        assert (said.code, said.out) == (2, ""), said.err
        return said.err

    def json(self, *arguments: object) -> Any:
        """The document that it prints where all is well."""
        said = self(*arguments, "--json")
        assert said.code == 0, said.err
        return json.loads(said.out)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path_factory.mktemp("cache") / "cache"))


@pytest.fixture
def shardwise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shardwise:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return Shardwise(capsys)
