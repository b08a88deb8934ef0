"""The tests' own tools: which cells CI runs, and the yardstick of processor time."""

from tests.pairwise import most_unlike
from tests.speed import REFERENCE_SECONDS, TRIES, quiet_seconds

CELLS = [{"layout": layout, "method": method} for layout in ("ddp", "tp") for method in ("full", "lora")]
ONE = [1] * 4


def test_the_cell_with_most_values_and_pairs_that_no_fast_cell_has_is_run() -> None:
    assert most_unlike(CELLS, [False, True, True, True], ONE) == 3
    assert most_unlike(CELLS, [False, True, True, False], ONE) == 2
    assert most_unlike([*CELLS, {"layout": "tp", "method": "qlora"}], [False, True, True, False, True], [1, *ONE]) == 4
    assert most_unlike(CELLS, [True] * 4, ONE) == 3
    assert most_unlike(CELLS, [True] * 4, [2, 2, 4, 4]) == 1
    assert most_unlike(CELLS, [True] * 4, [1, 4, 4, 8]) == 0


def _work(calls: list[int], rounds: int) -> None:
    calls.append(sum(i % 7 for i in range(rounds)))


def test_work_below_its_limit_is_done_once_and_slow_work_stays_slow():
    calls: list[int] = []
    assert quiet_seconds(lambda: _work(calls, 10), limit=1) < 1
    assert len(calls) == 1
    limit = REFERENCE_SECONDS / 10
    assert quiet_seconds(lambda: _work(calls, 2_000_000), limit=limit) > limit
    assert len(calls) == 1 + TRIES
