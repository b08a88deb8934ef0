"""Gradients that FSDP reduces at the last micro-batch alone, as they are made, added up, and reduced."""

import pytest

from shardwise.plan.costs.deferred_reduction import turns
from shardwise.plan.memory.forecast import holdings_of, moments
from shardwise.plan.work.in_flight import Flight, Scene
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, job, memory, shape, work

ASKED = job(data={"max_length": 64})
PIPELINE = Layout(dp_shard=2, pp=2, schedule="1f1b")


def worked(layout, *, micros, once=True):
    chosen = execution(layout, gradient_accumulation_steps=micros, precision="fp32", reduce_once=once)
    return work(ASKED, shape(), chosen, "4x H100-SXM")


def scenes(layout, flight, **keys):
    asked = worked(layout, **keys)
    return {one.turn: one for one in turns(Scene(asked, holdings_of(asked)[0], flight))}


def test_the_first_stage_has_no_gradient_until_a_backward_made_it():
    asked = worked(PIPELINE, micros=2)
    holding = holdings_of(asked)[0]
    block, trained = holding.part.inventory.block.trained_elements, holding.part.inventory.trained_elements
    first = {name: alive["gradients"] for name, alive in moments(asked, holding, gradients=False) if "layer" in name}
    assert first == {
        "forward of layer 2": 0,
        "backward of layer 2": 0,
        "backward of layer 1": 4 * block,
        "backward of layer 0": 4 * 2 * block,
    }
    last = {name: alive["gradients"] for name, alive in moments(asked, holding, gradients=True) if "layer" in name}
    assert last == {
        "backward of layer 2": 4 * trained,
        "backward of layer 1": pytest.approx(4 * (trained - block) + 4 * block / 2),
        "backward of layer 0": pytest.approx(4 * (trained - 2 * block) + 4 * 2 * block / 2),
    }


def test_with_a_third_micro_batch_all_gradients_stand_whole_through_a_backward():
    asked = worked(PIPELINE, micros=3)
    holding = holdings_of(asked)[0]
    trained = holding.part.inventory.trained_elements
    between = [alive["gradients"] for name, alive in moments(asked, holding, gradients=True) if "backward of" in name]
    assert max(between) == between[0] == 4 * trained


@pytest.mark.parametrize(
    ("layout", "flight", "micros", "found"),
    [
        (PIPELINE, Flight(pairs=2), 2, {"first": 2}),
        (PIPELINE, Flight(pairs=1, gradients=True, forwards=False), 2, {"last": 1}),
        (PIPELINE, Flight(pairs=2, gradients=True), 3, {"between": 2, "last": 1}),
        (Layout(dp_shard=4), Flight(gradients=True), 2, {"last": 1}),
        (Layout(dp_shard=4), Flight(gradients=True), 3, {"between": 1, "last": 1}),
        (Layout(dp_shard=2, pp=2, schedule="interleaved"), Flight(pairs=3, gradients=True), 4, {None: 3}),
    ],
)
def test_a_flight_stands_for_the_backwards_that_it_may_be_of(layout, flight, micros, found):
    assert {turn: one.flight.pairs for turn, one in scenes(layout, flight, micros=micros).items()} == found


def test_each_backward_is_alike_where_all_gradients_are_reduced():
    flight = Flight(gradients=True)
    assert [*scenes(Layout(dp_shard=4), flight, micros=3, once=False)] == [None]


def test_reducing_once_needs_the_whole_gradients_and_no_more():
    layout, asked = Layout(dp_shard=4), {"gradient_accumulation_steps": 4, "precision": "fp32"}
    model = shape(vocab_size=32000)
    each, once = (memory(ASKED, model, layout, reduce_once=once, **asked).peak_bytes for once in (False, True))
    whole = 4 * model.num_parameters
    assert whole / 2 < once - each < whole
