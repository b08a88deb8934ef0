"""The maps rank <-> coordinates and layer <-> stage; pipeline orders, with known bubbles."""

import itertools
import math
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog.models import read_model
from shardwise.errors import JobError
from shardwise.spec.job.file import job_from_data
from shardwise.spec.job.strict import from_plain
from shardwise.spec.layout.axes import AXES, STRATEGIES, Layout, Schedule
from shardwise.spec.layout.execution import Execution, accumulation_steps
from shardwise.spec.layout.schedule import Action, actions, forwards
from shardwise.spec.model.stages import balanced, stage_blocks, unit_blocks
from tests.refusals import must_refuse

degrees = st.integers(1, 5)
layouts = st.builds(Layout, dp_replicate=degrees, dp_shard=degrees, tp=degrees, pp=degrees, cp=degrees)
EVEN = r"give no such product\. Use fsdp, or an even number of them, 4 or more"


@settings(max_examples=30)
@given(layouts)
def test_ranks_and_coordinates_are_a_bijection(layout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))
    assert layout.world_size == math.prod(getattr(layout, axis) for axis in AXES)
    shares = [layout.data_rank(rank) for rank in range(layout.world_size)]
    peers = layout.world_size // layout.data_world_size
    assert sorted(shares) == sorted(list(range(layout.data_world_size)) * peers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_name_means_the_layout_that_bears_it(strategy) -> None:
    layout = Layout.from_strategy(strategy, world_size=4, gpus_per_node=2)
    assert layout.world_size == 4 and layout.strategy == strategy
    assert Layout.from_strategy(strategy, world_size=1).strategy == "single"
    assert Layout.from_strategy("hsdp", world_size=12, gpus_per_node=2) == Layout(dp_replicate=6, dp_shard=2)
    assert Layout(dp_shard=2, tp=2).strategy == "fsdp x tp"
    assert Layout(dp_replicate=2, pp=2).strategy == "ddp x pp"
    assert Layout(dp_replicate=2, dp_shard=2, tp=2).strategy == "hsdp x tp"


@given(layouts)
def test_layouts_survive_json(layout) -> None:
    assert from_plain(Layout, layout.to_json()) == layout
    execution = Execution(layout=layout, micro_batch_size=2, gradient_accumulation_steps=3)
    assert from_plain(Execution, execution.to_json()) == execution


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 20))
def test_accumulation_sees_every_sample_and_no_whole_step_too_many(batch, micro, ranks) -> None:
    steps = accumulation_steps(global_batch_size=batch, micro_batch_size=micro, data_world_size=ranks)
    assert steps * micro * ranks >= batch > (steps - 1) * micro * ranks


@given(st.integers(1, 8), st.integers(1, 4), *(st.integers(low, 30).map(float) for low in (1, 0, 0)))
def test_no_other_split_has_a_cheaper_costliest_stage(blocks, stages, block, first, last) -> None:
    stages = min(stages, blocks)

    def costs(bounds: tuple[int, ...]) -> list[float]:
        sums = [block * (end - begin) for begin, end in itertools.pairwise((0, *bounds, blocks))]
        sums[0] += first
        sums[-1] += last
        return sums

    best = min(max(costs(cut)) for cut in itertools.combinations(range(1, blocks), stages - 1))
    found = balanced(blocks, num_stages=stages, costs=(block, first, last))
    assert [layer for stage in found for layer in stage] == list(range(blocks))
    assert all(len(stage) > 0 for stage in found)
    assert max(costs(tuple(stage.start for stage in found[1:]))) == best


def strategy(name: str, *gpus: int) -> Callable[[], object]:
    return lambda: Layout.from_strategy(name, **dict(zip(("world_size", "gpus_per_node"), gpus, strict=False)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Layout(tp=2).coordinates(-1), "outside the world of 2"),
        (lambda: Layout(tp=2).coordinates(2), "outside the world of 2"),
        *((lambda degree=degree: Layout(tp=degree), "a degree is a whole number") for degree in (0, -1, 1.5, True)),
        (lambda: Layout(dp_shard=3, ep=2), "and does not divide dp_shard = 3"),
        (strategy("magic", 2), "'magic' is not a strategy; the strategies are mp, ddp"),
        *((strategy("hsdp", size), EVEN) for size in (2, 3, 5)),
        (strategy("hsdp", 12, 1), r"these 12 nodes has 1 GPU\. Use fsdp, or nodes of at least 2 GPUs"),
        (strategy("hsdp", 8, 3), r"8 processes in groups of 3 .* Use fsdp, or a multiple of 3 of them"),
    ],
)
def test_what_is_no_layout_is_refused_in_a_sentence(make, says) -> None:
    must_refuse(ValueError, says, make)


def test_a_large_head_takes_blocks_off_the_last_stage() -> None:
    # Llama-3.2-1B's head weighs as much as four of 16 blocks; TinyLlama's is small beside 22.
    assert [len(stage) for stage in stage_blocks(read_model("llama-3.2-1b"), num_stages=2)] == [9, 7]
    assert [len(stage) for stage in stage_blocks(read_model("tinyllama-1.1b"), num_stages=2)] == [11, 11]
    with pytest.raises(ValueError, match="23 pipeline stages for 22 layers; use at most 22"):
        stage_blocks(read_model("tinyllama-1.1b"), num_stages=23)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(0, 200))
def test_every_block_is_in_one_unit_and_all_but_the_last_are_large_enough(sizes, least) -> None:
    units = unit_blocks(sizes, least=least)
    assert [index for unit in units for index in unit] == list(range(len(sizes)))
    for unit in units[:-1]:
        held = [sizes[index] for index in unit]
        assert sum(held) >= least
        assert sum(held[:-1]) < max(least, 1), "it was large enough before"


@pytest.mark.parametrize(
    "keys",
    [
        {"layout": {"dp_replicate": 2, "prefetch": 2}},
        {"layout": {"dp_shard": 2, "zero_stage": 1, "min_num_params": 5}},
        {"layout": {"min_num_params": 5}, "train": {"offload": "optimizer"}},
    ],
)
def test_units_of_whole_weights_are_refused_but_where_they_come_from_the_host(keys) -> None:
    must_refuse(JobError, "has no effect where weights are whole on every GPU", job_from_data, {"model": "m", **keys})
    job = job_from_data({"model": "m", "layout": {"prefetch": 3}, "train": {"offload": "parameters"}})
    assert job.layout.to_layout() == Layout(prefetch=3)


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
