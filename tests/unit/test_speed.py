"""The yardstick of processor time: it forgives a slow core, and no slow work."""

from tests.speed import REFERENCE_SECONDS, TRIES, quiet_seconds


def _work(calls: list[int], rounds: int) -> None:
    calls.append(sum(i % 7 for i in range(rounds)))


def test_work_below_its_limit_is_done_once_and_slow_work_stays_slow():
    calls: list[int] = []
    assert quiet_seconds(lambda: _work(calls, 10), limit=1) < 1
    assert len(calls) == 1
    limit = REFERENCE_SECONDS / 10
    assert quiet_seconds(lambda: _work(calls, 2_000_000), limit=limit) > limit
    assert len(calls) == 1 + TRIES
