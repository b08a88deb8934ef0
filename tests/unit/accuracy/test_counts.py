"""Without any count of the memory forecast, runs leave their bounds or drawn ones differ."""

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accuracy.grid.compare import Compared
from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.search.question import ask, work_on
from shardwise.plan.work.work import Work
from shardwise.spec.plan.forecast import MemoryForecast
from tests.unit.accuracy.published import measured_runs
from tests.unit.plan.drawn import MOVES, answer, stored

PLAN = "shardwise.plan"
#: Below a measured peak by more than this is a false "fits"; runs forecast lower are left out.
LOWEST = -0.01

#: What is counted, by what shows it -> the function or property of the planner that counts it.
COUNTS = tomllib.loads(Path(__file__).with_name("counts.toml").read_text(encoding="utf-8"))
MEASURED, DRAWN = COUNTS["measured"], COUNTS["drawn"]


class Case(NamedTuple):
    """A forecast to make again. `left`: whether it is out of its bounds."""

    work: Callable[[], Work]
    left: Callable[[MemoryForecast], bool]


def _of_a_run(one: Compared) -> Case:
    seen, cluster = one.measured, parse_hardware(f"cpu:{one.cell.processes}")
    question = ask(one.job, model=one.model, cluster=cluster, lengths=seen.lengths)

    def left(forecast: MemoryForecast) -> bool:
        mine = next(alike for alike in forecast.ranks if seen.rank in alike.ranks)
        exact = (mine.parts["weights"], mine.parts["optimizer"]) == (seen.weights, seen.optimizer)
        return not exact or (mine.peak_bytes - mine.parts["context"]) / seen.peak - 1 < LOWEST

    return Case(lambda: work_on(question, cluster, one.execution), left)


@pytest.fixture(scope="module")
def measured() -> list[Case]:
    seen = [one for one in measured_runs() if one.measured.seen_whole and not one.cell.held_out]
    return [_of_a_run(one) for one in seen if one.error >= LOWEST]


def _leaves(cases: list[Case]) -> bool:
    return any(case.left(forecast_memory(case.work())) for case in cases)


def _zero(found: Any) -> Any:
    if isinstance(found, dict):
        return dict.fromkeys(found, 0)
    return type(found)(0 for _ in found) if isinstance(found, list | tuple) else 0


def _forget(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """From now on what is counted there is 0."""
    room, module, *names = place.split(".")
    owner: Any = sys.modules[f"{PLAN}.{room}.{module}"]
    if len(names) == 2:
        kind = getattr(owner, names[0])
        nothing: Any = (lambda *_, **__: 0) if callable(getattr(kind, names[1])) else property(lambda _: 0)
        monkeypatch.setattr(kind, names[1], nothing)
        return
    counts = getattr(owner, names[0])
    for name, used in list(sys.modules.items()):
        if name.startswith(PLAN) and getattr(used, names[0], None) is counts:
            monkeypatch.setattr(used, names[0], lambda *given, **keys: _zero(counts(*given, **keys)))


@pytest.fixture(autouse=True)
def _counted_anew() -> Iterator[None]:
    """Shares are remembered from one forecast to the next."""
    cached = sys.modules[f"{PLAN}.work.persistent"]._share
    cached.cache_clear()
    yield
    cached.cache_clear()


def test_with_all_counts_no_forecast_leaves_its_bounds(measured):
    assert not _leaves(measured)


@pytest.mark.parametrize("count", MEASURED)
def test_without_a_count_a_measured_run_leaves_its_bound(count, measured, monkeypatch):
    _forget(monkeypatch, MEASURED[count])
    assert _leaves(measured)


@pytest.mark.parametrize("count", DRAWN)
def test_without_a_count_a_drawn_execution_needs_other_bytes(count, monkeypatch):
    _forget(monkeypatch, DRAWN[count])
    assert any(abs(answer(drawn).peak / peak - 1) > MOVES for drawn, peak, _, _ in stored())
