"""The program in this process: what it prints and how it exits."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from shardwise.cli.main import main
from tests.unit.counting import asked, chat_model, rows

__all__ = ["asked", "chat_model", "rows"]


@dataclass(frozen=True, kw_only=True)
class Said:
    code: int
    out: str
    err: str


Shardwise = Callable[..., Said]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path_factory.mktemp("cache") / "cache"))


@pytest.fixture
def shardwise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shardwise:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Said(code=int(caught.value.code or 0), out=captured.out, err=captured.err)

    return run
