"""Gradients that FSDP reduces at the last micro-batch alone, as they are made, added up, and reduced."""

import pytest

from shardwise.plan.costs.deferred_reduction import passes, turns
from shardwise.plan.memory.forecast import holdings_of, moments
from shardwise.plan.work.in_flight import Flight, Scene
from shardwise.plan.work.tensors import TYPES
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, job, memory, shape, work

ASKED = job(data={"max_length": 64})
PIPELINE = Layout(dp_shard=2, pp=2, schedule="1f1b")
CPU, GPU = "cpu:4", "4x H100-SXM"


def worked(layout, *, micros, hardware=GPU, precision="fp32", once=True):
    chosen = execution(layout, gradient_accumulation_steps=micros, precision=precision, reduce_once=once)
    return work(ASKED, shape(), chosen, hardware)


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


@pytest.mark.parametrize(
    ("precision", "hardware", "turn", "found"),
    [
        ("fp32", GPU, "first", 4 * 1000),  # they stay as they were made
        ("fp32", GPU, "between", 0),  # added as they were made
        ("fp32", GPU, "last", 4 * 1000),  # the buffer that is reduced
        ("fp32", CPU, "last", 4 * 1000 + 4 * 1000 / 4),  # gloo's copy, in place of the whole ones, and the sum's part
        ("mixed", GPU, "first", 4 * 1000 + 2 * 600),  # cast one after the other
        ("mixed", GPU, "between", 2 * 1000),
        ("mixed", CPU, "between", 2 * 1000 + 4 * 600),  # a processor casts what it adds
        ("mixed", GPU, "last", 4 * 1000),
    ],
)
def test_as_a_unit_is_passed_its_gradients_are_kept_added_or_reduced(precision, hardware, turn, found):
    flight = Flight(gradients=turn != "first")
    scene = scenes(Layout(dp_shard=4), flight, micros=3, precision=precision, hardware=hardware)[turn]
    copied = 4 * 1000 if hardware == CPU else 0
    assert passes(scene, 1000, largest=600, copied=copied) == pytest.approx(found)
    assert TYPES[precision].trainable == 4


def test_reducing_once_needs_the_whole_gradients_and_no_more():
    layout, asked = Layout(dp_shard=4), {"gradient_accumulation_steps": 4, "precision": "fp32"}
    model = shape(vocab_size=32000)
    each, once = (memory(ASKED, model, layout, reduce_once=once, **asked).peak_bytes for once in (False, True))
    whole = 4 * model.num_parameters
    assert whole / 2 < once - each < whole
