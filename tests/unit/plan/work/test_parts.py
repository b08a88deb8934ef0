"""What lies on which rank under products of axes: by hand where it can be, or by its sums."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise.plan.work.in_flight import flights, pairs_in_flight
from shardwise.spec.layout.schedule import actions
from tests.unit.plan.asking import Layout, elements, held, job, memory, shape, take_inventory
from tests.unit.spec.test_schedule import in_flight

SCHEDULES = ["sequential", "gpipe", "1f1b", "interleaved", "zero_bubble"]
axis = st.integers(1, 3)
sizes = {"dp_replicate": axis, "dp_shard": st.integers(1, 4), "tp": st.sampled_from([1, 2, 4]), "pp": axis}
layouts = st.builds(Layout, **sizes, schedule=st.sampled_from(SCHEDULES))


def odd(**changes):
    return shape(vocab_size=101, hidden_size=32, intermediate_size=37, num_attention_heads=4, **changes)


@given(layouts)
def test_every_rank_stands_in_exactly_one_forecast(layout):
    forecast = memory(job(), odd(), layout)
    assert sorted([rank for group in forecast.ranks for rank in group.ranks]) == list(range(layout.world_size))
    assert forecast.peak_bytes == max(group.peak_bytes for group in forecast.ranks)


@given(layouts, st.sampled_from(["full", "lora"]), st.booleans())
def test_ranks_hold_the_model_and_what_is_copied_and_nothing_else(layout, method, tied):
    model, asked = odd(tie_word_embeddings=tied), job(method=method)
    inventory = take_inventory(asked, model)
    cut = inventory.over_all(lambda unit: sum(tensor.elements for tensor in unit.tensors if tensor.cut))
    sliced = cut * layout.dp_replicate
    whole = (elements(inventory) * layout.dp_replicate - sliced) * layout.tp
    if tied and layout.pp > 1:
        sliced += model.embedding_parameters * layout.dp_replicate  # the last stage has a copy of its own
    ranks = held(asked, model, layout, precision="fp32")
    assert sum(len(h.ranks(layout)) * h.weights for h in ranks) == 4 * (sliced + whole)


@given(st.sampled_from(SCHEDULES), st.integers(2, 6), st.integers(1, 20))
def test_micro_batches_in_flight_are_those_of_the_schedule(schedule, ranks, micros):
    layout = Layout(pp=ranks, schedule=schedule)
    for rank in range(ranks):
        order = actions(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros)
        assert pairs_in_flight(schedule, num_ranks=ranks, rank=rank, num_micro_batches=micros) == in_flight(order)
        first, *_ = flights(layout, pp=rank, num_micro_batches=micros)
        at_last_stage = in_flight(action for action in order if action.stage == layout.num_stages - 1)
        if rank == ranks - 1:
            assert first.heads >= at_last_stage
