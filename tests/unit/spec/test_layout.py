"""The two maps both wings rely on: rank <-> coordinates, layer <-> stage."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.spec.execution import Execution, accumulation_steps
from shardwise.spec.layout import AXES, STRATEGIES, Layout
from shardwise.spec.stages import stage_layers

degrees = st.integers(1, 5)
layouts = st.builds(Layout, dp_replicate=degrees, dp_shard=degrees, tp=degrees, pp=degrees, cp=degrees)


@given(layouts)
def test_degrees_multiply_to_the_world_size(layout: Layout) -> None:
    product = 1
    for axis in AXES:
        product *= getattr(layout, axis)
    assert layout.world_size == product


@settings(max_examples=30)
@given(layouts)
def test_ranks_and_coordinates_are_a_bijection(layout: Layout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))


@settings(max_examples=30)
@given(layouts)
def test_every_share_of_the_batch_goes_to_equally_many_ranks(layout: Layout) -> None:
    shares = [layout.data_rank(rank) for rank in range(layout.world_size)]
    peers = layout.world_size // layout.data_world_size
    assert sorted(shares) == sorted(list(range(layout.data_world_size)) * peers)


def test_tensor_peers_are_neighbours_and_pipeline_stages_are_far_apart() -> None:
    layout = Layout(tp=2, pp=2, dp_shard=2)
    assert layout.coordinates(1).tp == 1
    assert layout.coordinates(4).pp == 1


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_is_an_error(rank: int) -> None:
    with pytest.raises(ValueError, match="outside the world of 2"):
        Layout(tp=2).coordinates(rank)


@pytest.mark.parametrize("degree", [0, -1, 1.5, True])
def test_a_degree_is_a_whole_number_of_at_least_one(degree: object) -> None:
    with pytest.raises(ValueError, match="a degree is a whole number"):
        Layout(tp=degree)  # type: ignore[arg-type]


def test_expert_parallel_which_no_forecast_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="ep = 2: expert parallel is neither forecast nor trained"):
        Layout(dp_shard=4, ep=2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_name_means_the_layout_that_bears_it(strategy: str) -> None:
    layout = Layout.from_strategy(strategy, world_size=4, gpus_per_node=2)
    assert layout.world_size == 4
    assert layout.strategy == strategy
    assert Layout.from_strategy(strategy, world_size=1).strategy == "single"


def test_products_are_named_by_their_parts() -> None:
    assert Layout(dp_shard=2, tp=2).strategy == "fsdp x tp"
    assert Layout(dp_replicate=2, pp=2).strategy == "ddp x pp"
    assert Layout(dp_replicate=2, dp_shard=2, tp=2).strategy == "hsdp x tp"


def test_an_unknown_strategy_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'magic' is not a strategy; the strategies are mp, ddp"):
        Layout.from_strategy("magic", world_size=2)


@given(layouts)
def test_layouts_survive_json(layout: Layout) -> None:
    assert Layout.from_json(layout.to_json()) == layout
    execution = Execution(layout=layout, micro_batch_size=2, gradient_accumulation_steps=3)
    assert Execution.from_json(execution.to_json()) == execution


@given(st.integers(1, 500), st.integers(1, 20), st.integers(1, 20))
def test_accumulation_sees_every_sample_and_no_whole_step_too_many(batch: int, micro: int, ranks: int) -> None:
    steps = accumulation_steps(global_batch_size=batch, micro_batch_size=micro, data_world_size=ranks)
    assert steps * micro * ranks >= batch > (steps - 1) * micro * ranks


costs = st.lists(st.integers(1, 20).map(float), min_size=1, max_size=8)


@given(costs, st.integers(1, 8), st.integers(0, 30).map(float), st.integers(0, 30).map(float))
def test_every_layer_lies_in_exactly_one_stage_and_none_is_empty(
    layers: list[float], stages: int, first: float, last: float
) -> None:
    stages = min(stages, len(layers))
    ranges = stage_layers(layers, num_stages=stages, first_extra=first, last_extra=last)
    assert [layer for stage in ranges for layer in stage] == list(range(len(layers)))
    assert all(len(stage) > 0 for stage in ranges)


@given(costs, st.integers(1, 4), st.integers(0, 30).map(float), st.integers(0, 30).map(float))
def test_no_other_split_has_a_cheaper_costliest_stage(
    layers: list[float], stages: int, first: float, last: float
) -> None:
    stages = min(stages, len(layers))

    def worst(bounds: tuple[int, ...]) -> float:
        sums = [sum(layers[a:b]) for a, b in itertools.pairwise((0, *bounds, len(layers)))]
        sums[0] += first
        sums[-1] += last
        return max(sums)

    best = min(worst(cut) for cut in itertools.combinations(range(1, len(layers)), stages - 1))
    found = stage_layers(layers, num_stages=stages, first_extra=first, last_extra=last)
    assert worst(tuple(stage.start for stage in found[1:])) == best


def test_more_stages_than_layers_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 pipeline stages for 2 layers"):
        stage_layers([1.0, 1.0], num_stages=3)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_hybrid_sharding_is_never_silently_something_else(world_size: int) -> None:
    with pytest.raises(ValueError, match=r"give no such product\. Use fsdp, or an even number of them, 4 or more"):
        Layout.from_strategy("hsdp", world_size=world_size)


def test_hybrid_sharding_on_nodes_of_one_gpu_wants_larger_nodes_not_more() -> None:
    with pytest.raises(ValueError, match=r"these 12 nodes has 1 GPU\. Use fsdp, or nodes of at least 2 GPUs"):
        Layout.from_strategy("hsdp", world_size=12, gpus_per_node=1)
    with pytest.raises(ValueError, match=r"8 processes in groups of 3 .* Use fsdp, or a multiple of 3 of them"):
        Layout.from_strategy("hsdp", world_size=8, gpus_per_node=3)
    layout = Layout.from_strategy("hsdp", world_size=12, gpus_per_node=2)
    assert (layout.dp_replicate, layout.dp_shard) == (6, 2)
