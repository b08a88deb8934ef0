"""What lies on which rank under every product of axes: by hand where it can be, by its sums elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog.models import find_model
from shardwise.plan.memory.inventory import take_inventory
from shardwise.plan.memory.parts import parts
from shardwise.plan.memory.work import flights, pairs_in_flight
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.schedule import actions, in_flight
from tests.unit.plan.asking import held, job, memory, shape

SCHEDULES = ["sequential", "gpipe", "1f1b", "interleaved", "zero_bubble"]

axis = st.integers(1, 3)
layouts = st.builds(
    Layout,
    dp_replicate=axis,
    dp_shard=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4]),
    pp=axis,
    schedule=st.sampled_from(SCHEDULES),
)


def odd(**changes):
    return shape(vocab_size=101, hidden_size=32, intermediate_size=37, num_attention_heads=4, **changes)


@given(layouts)
def test_every_rank_stands_in_exactly_one_forecast(layout):
    forecast = memory(job(), odd(), layout)
    named = [rank for group in forecast.ranks for rank in group.ranks]
    assert sorted(named) == list(range(layout.world_size))
    assert forecast.peak_bytes == max(group.peak_bytes for group in forecast.ranks)


@given(layouts, st.sampled_from(["full", "lora"]), st.booleans())
def test_ranks_hold_the_model_and_what_is_copied_and_nothing_else(layout, method, tied):
    model = odd(tie_word_embeddings=tied)
    asked = job(method=method)
    inventory = take_inventory(asked, model)
    sliced = sum(t.elements for t in _tensors(inventory) if t.cut) * layout.dp_replicate
    whole = (inventory.elements * layout.dp_replicate - sliced) * layout.tp
    if tied and layout.pp > 1:
        sliced += model.embedding_parameters * layout.dp_replicate  # the last stage has a copy of its own
    ranks = held(asked, model, layout, precision="fp32")
    assert sum(len(h.ranks(layout)) * h.weights for h in ranks) == 4 * (sliced + whole)


def _tensors(inventory):
    for count, unit in inventory.blocks:
        for tensor in unit.tensors:
            for _ in range(count):
                yield tensor
    yield from inventory.root.tensors


@given(layouts)
def test_every_rank_holds_what_its_coordinates_say(layout):
    at = {rank: h for h in held(job(), odd(), layout) for rank in h.ranks(layout)}
    for rank, holding in at.items():
        place = layout.coordinates(rank)
        assert holding.part.pp == place.pp
        assert place.tp in holding.part.tp
        assert place.dp_shard in holding.shards


def test_tensor_parallel_ranks_hold_slices_of_matrices_and_whole_norms():
    model = shape()  # 128 wide, 352 inside, 6 blocks, 4 of 8 heads for keys, 2000 tokens
    (one,) = held(job(), model, Layout(tp=4), precision="fp32")
    block = (128 * 128 * 2 + 128 * 64 * 2 + 128 * 352 * 3) // 4 + 2 * 128
    assert one.weights == 4 * (6 * block + 2 * 2000 * 128 // 4 + 128)


def test_adapters_are_sliced_where_they_touch_the_sliced_dim():
    asked = job(method="lora", lora={"r": 2, "target_modules": ["q_proj", "o_proj"]})
    (one,) = held(asked, shape(), Layout(tp=4), precision="fp32")
    q_proj = 2 * 128 + 128 * 2 // 4  # A whole, B's rows sliced
    o_proj = 2 * 128 // 4 + 128 * 2  # A's columns sliced, B whole
    assert one.gradients == 4 * 6 * (q_proj + o_proj)


def test_zero1_holds_whole_weights_and_gradients_and_rows_of_the_states():
    layout = Layout(dp_shard=4, zero_stage=1, reshard_after_forward=False)
    model = shape()
    (alone,) = held(job(), model)
    ranks = held(job(), model, layout)
    steps = 4 * (6 * 9 + 3)
    assert {(h.weights, h.gradients) for h in ranks} == {(alone.weights, alone.gradients)}
    assert sum(len(h.shards) * (h.optimizer - steps) for h in ranks) == alone.optimizer - steps


def test_the_ends_of_a_pipeline_hold_the_ends_of_the_model():
    model = find_model("llama-3.1-8b", offline=True)
    first, *_, last = held(job(), model, Layout(pp=4))
    assert first.part.is_first and not first.part.is_last
    assert last.part.is_last and not last.part.is_first
    assert first.weights == 4 * (first.part.num_blocks * model.layer_parameters + model.embedding_parameters)
    assert last.weights == 4 * (last.part.num_blocks * model.layer_parameters + model.embedding_parameters + 4096)


@given(st.integers(1, 6), st.sampled_from([1, 2, 4]), st.sampled_from(SCHEDULES))
def test_every_block_lies_on_exactly_one_pipeline_rank(pp, tp, schedule):
    model = shape(num_hidden_layers=13)
    layout = Layout(pp=pp, tp=tp, schedule=schedule)
    found = parts(model, take_inventory(job(), model), layout)
    assert sum(part.num_blocks * len(part.tp) for part in found) == 13 * tp


@given(st.sampled_from(SCHEDULES), st.integers(2, 6), st.integers(1, 20))
def test_micro_batches_in_flight_are_those_of_the_schedule(schedule, ranks, micros):
    layout = Layout(pp=ranks, schedule=schedule)
    for rank in range(ranks):
        order = actions(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros)
        most = in_flight(order)
        assert pairs_in_flight(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros) == most
        first, *_ = flights(layout, pp=rank, num_micro_batches=micros)
        at_last_stage = in_flight(action for action in order if action.stage == layout.num_stages - 1)
        if rank == ranks - 1:
            assert first.heads >= at_last_stage


def test_gpipe_keeps_every_micro_batch_and_1f1b_as_many_as_stages_follow():
    model = find_model("llama-3.1-8b", offline=True)

    def activations(schedule, micros):
        forecast = memory(
            job(), model, Layout(pp=4, schedule=schedule), gradient_accumulation_steps=micros, loss="chunked"
        )
        return [group.parts["activations"] for group in forecast.ranks]

    assert activations("gpipe", 16)[0] > 3 * activations("1f1b", 16)[0]
    assert activations("1f1b", 16)[0] > activations("1f1b", 16)[2]
    assert activations("sequential", 16)[0] < activations("1f1b", 16)[0] / 3


@pytest.mark.parametrize("axis", ["tp", "cp"])
def test_slices_of_the_work_keep_less_of_it(axis):
    model = find_model("llama-3.1-8b", offline=True)
    alone = memory(job(data={"max_length": 8192}), model)
    spread = memory(job(data={"max_length": 8192}), model, Layout(**{axis: 4}))
    assert spread.ranks[0].parts["activations"] < alone.ranks[0].parts["activations"] / 2
