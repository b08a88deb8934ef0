"""300 odd configurations and jobs: a plan or a sentence, at once, and never a traceback."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.marks import first
from tests.speed import quiet_seconds
from tests.unit.cli.conftest import Said, Shardwise
from tests.unit.cli.mistakes.odd import Case, odd_case, open_case
from tests.unit.cli.plan_json import flaws

CASES = first(16, range(250))
#: Of a quiet core's time, for each.
MOST_SECONDS = 1.0
#: Where hardware or a value is open, one question is many of them.
OPEN, MOST_SECONDS_OPEN = first(5, range(50)), 6.0
#: What a sentence for people never holds.
PYTHON = re.compile(r"Traceback|<class|object at 0x|\bError\(|\bdict\b|NoneType|\[type=")


def _asked(shardwise: Shardwise, case: Case) -> Said:
    Path("config.json").write_bytes(case.config)
    Path("job.yaml").write_text(json.dumps(case.job).replace("NaN", ".nan").replace("Infinity", ".inf"))
    return shardwise("plan", "job.yaml", *case.shown)


@pytest.mark.timed
@pytest.mark.parametrize("seed", CASES)
def test_an_odd_job_is_answered_or_refused_in_a_sentence(shardwise, tmp_path, monkeypatch, seed) -> None:
    _is_answered(shardwise, odd_case(seed), tmp_path, monkeypatch, most_seconds=MOST_SECONDS)


@pytest.mark.parametrize("seed", OPEN)
def test_an_open_question_is_answered_or_refused_in_a_sentence(shardwise, tmp_path, monkeypatch, seed) -> None:
    _is_answered(shardwise, open_case(seed), tmp_path, monkeypatch, most_seconds=MOST_SECONDS_OPEN)


def _is_answered(shardwise: Shardwise, case: Case, folder: Path, monkeypatch, *, most_seconds: float) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(folder))
    answers: list[Said] = []
    seconds = quiet_seconds(lambda: answers.append(_asked(shardwise, case)), limit=most_seconds)
    said = answers[0]
    if said.code == 2:
        _is_a_sentence(said)
    else:
        assert said.code in (0, 1), said.err
        assert re.fullmatch(r"(rows are padded: \S.{20,}\n)?", said.err)
        if case.shown[:1] == ("--json",):
            _is_a_plan(json.loads(said.out, parse_constant=_not_json), code=said.code)
    assert seconds < most_seconds


def _is_a_sentence(said: Said) -> None:
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines
    for line in lines:
        assert re.match(r"error: \S.{20,}", line), line
        assert not PYTHON.search(line), line
        assert len(line) < 2000, line


def _is_a_plan(plan: dict[str, Any], *, code: int) -> None:
    assert flaws(plan) == []
    assert (plan["chosen"] is None) == (code == 1)
    fitting = [candidate["fits"] for candidate in plan["candidates"]]
    assert any(fitting) == (code == 0)
    assert fitting == sorted(fitting, reverse=True)
    assert bool(plan["candidates"] or plan["rejected"])
    for candidate in plan["candidates"]:
        memory = candidate["memory"]
        assert memory["peak_low_bytes"] <= memory["peak_bytes"] <= memory["peak_high_bytes"]
        assert candidate["fits"] == (memory["peak_high_bytes"] <= memory["capacity_bytes"])
        for rank in memory["ranks"]:
            assert sum(rank["parts"].values()) == rank["peak_bytes"] <= memory["peak_bytes"]
        assert candidate["time"]["compute_utilization"] <= candidate["time"]["gpu_utilization"]


def _not_json(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")
