"""The frames of the toy: who holds what follows the planner's schedule."""

import itertools

import pytest

from shardwise import api
from shardwise.api.learn import toy
from shardwise.spec.layout.axes import Layout
from shardwise.spec.plan.timeline import COMPUTING

ALL = {(layer, row) for layer in range(len(toy.LAYERS)) for row in range(toy.ROWS)}


@pytest.mark.parametrize("name", ["mp", "ddp", "fsdp", "tp", "pp", "zero1", "zero2"])
def test_frames_cover_the_step_and_follow_its_spans(name: str) -> None:
    frames, drawn = toy.frames(name), toy.timeline_of(name)
    assert frames[0].start == 0 and frames[-1].end == drawn.seconds
    assert all(one.end == other.start for one, other in itertools.pairwise(frames))
    for rank in range(toy.GPUS):
        lane = next(lane for lane in drawn.lanes if rank in lane.ranks)
        spans = sum(span.end - span.start for span in drawn.of(lane, "compute") if span.kind in COMPUTING)
        shown = sum(frame.end - frame.start for frame in frames if not frame.seats[rank].waits)
        assert shown == pytest.approx(spans, abs=0.03 * drawn.seconds)
    layout = Layout.from_strategy(name, world_size=toy.GPUS)
    for frame in frames:
        for seat in frame.seats:
            assert seat.holds["weights"] >= toy.pieces(layout, seat.rank, what="weights")
            assert seat.holds["optimizer"] == toy.pieces(layout, seat.rank, what="optimizer")


def test_gathered_layers_are_freed_and_gpus_wait_while_they_exchange() -> None:
    for frame in toy.frames("fsdp"):
        for seat in frame.seats:
            for layer, letter in enumerate(toy.LAYERS):
                whole = {(layer, row) for row in range(toy.ROWS)} <= seat.holds["weights"]
                if seat.computes in (f"forward of {letter}", f"backward of {letter}"):
                    assert whole, (frame, letter)
                if seat.computes == "head and loss" and letter != "c":
                    assert not whole
    seats = [seat for frame in toy.frames("tp") for seat in frame.seats]
    exchanges = {seat.sends for seat in seats if seat.sent == "exchange"}
    assert exchanges == {f"exchange in {way} of {letter}" for way in ("forward", "backward") for letter in toy.LAYERS}
    assert all(seat.waits and seat.computes is None for seat in seats if seat.sent == "exchange")
    for name in ("mp", "ddp", "fsdp", "tp", "pp"):
        for seat in (seat for frame in toy.frames(name) for seat in frame.seats):
            assert seat.kind is None or seat.kind == "wait" or seat.kind in COMPUTING
            assert seat.sent is None or seat.sent not in COMPUTING


def test_gradients_appear_with_the_backward_are_reduced_and_go_with_the_optimizer() -> None:
    for name, held in (("ddp", 9), ("fsdp", 3), ("tp", 3), ("mp", 3), ("pp", 3)):
        seats = [frame.seats[0] for frame in toy.frames(name)]
        assert seats[0].holds["gradients"] == frozenset()
        last = next(seat for seat in reversed(seats) if seat.computes == "optimizer")
        assert len(last.holds["gradients"]) == held, name
        assert max(len(seat.holds["gradients"]) for seat in seats) >= held
        assert seats[-1].holds["gradients"] == frozenset()
        assert all(seat.holds["gradients"] <= ALL for seat in seats)


def test_one_gpu_computes_at_a_time_under_mp_and_several_under_pp() -> None:
    def at_once(name: str) -> int:
        working = ("forward", "backward", "loss")
        return max(sum(seat.kind in working for seat in frame.seats) for frame in toy.frames(name))

    assert at_once("mp") == 1 and at_once("pp") == toy.GPUS


@pytest.mark.parametrize("gpus", [2, 5, 8])
def test_the_toy_has_a_layer_and_a_row_for_each_gpu(gpus: int) -> None:
    every = {(layer, row) for layer in range(gpus) for row in range(gpus)}
    for name in ("mp", "ddp", "fsdp", "tp", "pp", "zero1", "zero2"):
        frames = toy.frames(name, gpus)
        for frame in frames:
            assert [seat.rank for seat in frame.seats] == [*range(gpus)]
            assert set().union(*(seat.holds["weights"] for seat in frame.seats)) == every
        held = [len(seat.holds["optimizer"]) for seat in frames[0].seats]
        assert held == [gpus * gpus if name == "ddp" else gpus] * gpus
        assert frames[-1].end == toy.timeline_of(name, gpus).seconds


def test_the_step_of_a_plan_has_its_own_frames() -> None:
    settings = ("model=llama-3.1-8b", "method=full", "hardware=8x H100-SXM", "layout={pp: 4, dp_shard: 2}")
    drawn = api.timeline(api.plan(overrides=[*settings, "data.num_rows=64"]))
    frames = toy.frames_of(drawn)
    assert [seat.name for seat in frames[0].seats] == [lane.name for lane in drawn.lanes]
    assert all(one.end == other.start for one, other in itertools.pairwise(frames))
    said = {seat.computes for frame in frames for seat in frame.seats}
    assert said & {span.name for span in drawn.spans if span.kind == "backward"}
    assert not any(seat.holds for seat in frames[0].seats)
