"""The timeline, task by task, against the closed forms that forecasts are made of."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.plan.costs.piece import MessageTime, RankTime
from shardwise.plan.explain.timeline import Streams, lay_backward, lay_forward, timeline_of, timeline_of_plan
from shardwise.plan.time.passes import StageTime
from shardwise.plan.time.step import forecast_time
from shardwise.spec.plan.file import plan_from_json
from shardwise.spec.plan.timeline import COMPUTING
from tests.unit.plan.asking import plan, shape
from tests.unit.plan.time.test_time import EVERY, FSDP, MP, made_of

some = st.floats(0.01, 3.0)
maybe = st.one_of(st.just(0.0), some)


@st.composite
def stages(draw):
    gather = draw(maybe)
    again = draw(st.sampled_from((0.0, gather)))
    outer = (draw(maybe) if gather else 0.0, draw(maybe), draw(maybe) if again else 0.0)
    messages = MessageTime(gather, again, draw(maybe), *outer, draw(maybe) if gather else 0.0, draw(maybe))
    forward, backward, loss = (RankTime(seconds, seconds) for seconds in (draw(some), draw(some), draw(maybe)))
    return StageTime(draw(st.integers(1, 9)), forward, backward, 0.0, loss, messages, draw(st.booleans()))


def covered(streams):
    """Seconds in which anything runs, overlaps counted once."""
    total = reached = 0.0
    for start, end in sorted((span.start, span.end) for span in streams.spans):
        total += max(0.0, end - max(start, reached))
        reached = max(end, reached)
    return total


@settings(max_examples=300)
@given(stages())
def test_the_closed_forms_are_the_schedule(stage):
    streams = Streams()
    half = lay_forward(streams, stage, begin=0.0)
    assert half == pytest.approx(stage.forward_pass.seconds)
    assert lay_backward(streams, stage, begin=half) - half == pytest.approx(stage.backward_pass.seconds)
    busy = stage.forward_pass.busy + stage.backward_pass.busy
    assert busy == pytest.approx(covered(streams), rel=0.02)


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: f"{layout.strategy} {layout.schedule}")
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_whole_timeline_is_as_long_as_the_step(layout, method):
    made = made_of(shape(num_hidden_layers=8), layout, 2, 5, method, "8x H100-SXM")
    drawn, forecast = timeline_of(made, micro_batches=5), forecast_time(made)
    assert drawn.seconds == pytest.approx(forecast.step_seconds)
    shares = [lane.computing for lane in drawn.lanes]
    assert sum(shares) / len(shares) == pytest.approx(forecast.compute_utilization), "the share that the table has"
    assert sorted(rank for lane in drawn.lanes for rank in lane.ranks) == list(range(layout.world_size))


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: f"{layout.strategy} {layout.schedule}")
def test_shares_are_those_of_the_step_however_few_of_its_micro_batches_are_drawn(layout):
    made = made_of(shape(num_hidden_layers=8), layout, 2, 64, "full", "8x H100-SXM")
    few, whole = timeline_of(made), timeline_of(made, micro_batches=64)
    assert few.drawn_micro_batches < 64
    assert [lane.computing for lane in few.lanes] == pytest.approx([lane.computing for lane in whole.lanes])
    for lane in whole.lanes:
        drawn = sum(s.end - s.start for s in whole.of(lane, "compute") if s.kind in COMPUTING)
        assert lane.computing == pytest.approx(drawn / whole.seconds), "of a step that is drawn, what is drawn"


def test_naive_model_parallel_is_a_staircase_of_one_gpu_at_a_time():
    drawn = timeline_of(made_of(shape(num_hidden_layers=8), MP, 1, 3))
    working = sorted((s.start, s.end, s.rank) for s in drawn.spans if s.kind in ("forward", "backward"))
    assert all(before[1] <= after[0] + 1e-12 for before, after in pairwise(working))
    assert [rank for _, _, rank in working] == [0, 1, 2, 3, 3, 2, 1, 0] * 2
    assert drawn.drawn_micro_batches == 2


def test_under_fsdp_every_layer_is_gathered_before_it_computes_and_most_gathers_hide_behind_computation():
    drawn = timeline_of(made_of(shape(num_hidden_layers=8, hidden_size=4096), FSDP, 4, 1, "full", "4x H100-SXM"))
    spans = {span.name: span for span in drawn.spans}
    for layer in range(8):
        assert spans[f"gather layer {layer}"].end <= spans[f"forward of layer {layer}"].start + 1e-12
        assert spans[f"gather layer {layer} again"].end <= spans[f"backward of layer {layer}"].start + 1e-12
    computing = [span for span in drawn.spans if span.kind in COMPUTING]
    for gather in (span for span in drawn.spans if span.kind == "gather" and span.start > computing[0].start):
        assert any(span.start < gather.end and gather.start < span.end for span in computing)


def test_a_waiting_gpu_is_drawn() -> None:
    drawn = timeline_of_plan(plan("gpt2", "2 x 8x H100-SXM", "method: lora"))
    (lane,) = drawn.lanes
    waited = sum(span.end - span.start for span in drawn.of(lane, "compute") if span.kind == "wait")
    assert waited > 0.7 * drawn.seconds
    assert lane.computing < 0.3


def test_a_plan_read_back_is_drawn_as_it_was() -> None:
    made = plan("llama-3.1-8b", "4x RTX-6000-Ada", "method: lora")
    drawn = timeline_of_plan(plan_from_json(made.to_json()))
    assert drawn == timeline_of_plan(made)
    assert drawn.strategy == made.best.execution.layout.strategy
    whole = drawn.micro_batches == drawn.drawn_micro_batches
    assert not whole or drawn.seconds == pytest.approx(made.best.time.step_seconds, rel=0.05)
