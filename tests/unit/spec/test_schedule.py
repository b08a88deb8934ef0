"""Pipeline orders: complete, free of deadlock, with their authors' bubbles and memory."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.spec.layout.axes import Layout, Schedule
from shardwise.spec.layout.schedule import Action, actions, forwards

SCHEDULES: tuple[Schedule, ...] = ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble")
schedules = st.sampled_from(SCHEDULES)
FLIGHTS: dict[Schedule, list[int]] = {"sequential": [1] * 4, "gpipe": [16] * 4, "zero_bubble": [4] * 4}
FLIGHTS |= {"1f1b": [4, 3, 2, 1], "interleaved": [11, 9, 7, 5]}


def orders(schedule: Schedule, ranks: int, micros: int) -> list[tuple[Action, ...]]:
    return [actions(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros) for rank in range(ranks)]


def in_flight(order: Iterable[Action]) -> int:
    """The most (stage, micro-batch) pairs of a rank whose saved activations are alive at once."""
    alive = most = 0
    for action in order:
        alive += {"forward": 1, "backward": -1, "backward_input": 0, "backward_weight": -1}[action.kind]
        most = max(most, alive)
    return most


def run(schedule: Schedule, ranks: int, micros: int) -> float:
    """Time until all ranks are done, forward and each half of a backward 1; fails if stuck."""
    layout = Layout(pp=ranks, schedule=schedule)
    share = ranks / layout.num_stages
    seconds = {"forward": share, "backward": 2 * share, "backward_input": share, "backward_weight": share}
    todo = [list(order) for order in orders(schedule, ranks, micros)]
    done: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * ranks
    while any(todo):
        moved = False
        for rank in range(ranks):
            while todo[rank] and (ready := ready_at(todo[rank][0], done, layout.num_stages)) is not None:
                action = todo[rank].pop(0)
                clock[rank] = max(clock[rank], ready) + seconds[action.kind]
                kind = "backward" if action.kind == "backward_input" else action.kind
                done[kind, action.stage, action.micro] = clock[rank]
                moved = True
        assert moved, f"{schedule} on {ranks} ranks with {micros} micro-batches is stuck at {[t[:1] for t in todo]}"
    return max(clock)


def ready_at(action: Action, done: dict[tuple[str, int, int], float], num_stages: int) -> float | None:
    """When what an action needs from other stages is there; None where it is not yet."""
    if action.kind == "forward":
        return 0.0 if action.stage == 0 else done.get(("forward", action.stage - 1, action.micro))
    if action.kind == "backward_weight" or action.stage == num_stages - 1:
        return 0.0
    return done.get(("backward", action.stage + 1, action.micro))


@settings(max_examples=150)
@given(schedules, st.integers(2, 6), st.integers(1, 14))
def test_every_stage_sees_every_micro_batch_once_and_none_is_stuck(schedule: Schedule, ranks: int, micros: int) -> None:
    run(schedule, ranks, micros)
    stages, by_rank = range(Layout(pp=ranks, schedule=schedule).num_stages), orders(schedule, ranks, micros)
    every = {(stage, micro) for stage in stages for micro in range(micros)}
    for kinds in (("forward",), ("backward", "backward_input"), ("backward", "backward_weight")):
        seen = [(a.stage, a.micro) for order in by_rank for a in order if a.kind in kinds]
        assert len(seen) == len(set(seen))
        assert set(seen) == every
    for kinds in (("forward",), ("backward", "backward_input")):  # each stage awaits what the one before passes on
        every_action = [a for order in by_rank for a in order if a.kind in kinds]
        passed = [[a.micro for a in every_action if a.stage == stage] for stage in stages]
        assert all(sequence == passed[0] for sequence in passed)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_bubbles_are_those_that_the_schedules_are_known_for(ranks: int) -> None:
    micros = 4 * ranks
    work = 3.0 * micros
    assert run("sequential", ranks, micros) == work * ranks
    assert run("gpipe", ranks, micros) == work + 3 * (ranks - 1)
    assert run("1f1b", ranks, micros) == work + 3 * (ranks - 1)
    assert run("interleaved", ranks, micros) == pytest.approx(work + 3 * (ranks - 1) / 2)
    assert run("zero_bubble", ranks, micros) <= work + 1.5 * (ranks - 1)


@pytest.mark.parametrize(("schedule", "expected"), FLIGHTS.items())
def test_micro_batches_in_flight_on_four_ranks(schedule: Schedule, expected: list[int]) -> None:
    assert [in_flight(order) for order in orders(schedule, 4, 16)] == expected


def test_an_evaluation_runs_the_forwards_in_the_same_order() -> None:
    order = forwards("interleaved", num_ranks=2, rank=0, num_micro_batches=3)
    assert [(a.stage, a.micro) for a in order] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]
    layout = Layout(pp=4, schedule="interleaved")
    assert [layout.stages_of(rank) for rank in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
