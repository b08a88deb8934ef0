"""Rules of thumb beside the forecast, and gradients that are reduced at the last micro-batch."""

from dataclasses import replace

import pytest

from shardwise.api.plans.shapes import profiled
from shardwise.plan import forecast_seen
from shardwise.plan.costs.fsdp import turns
from shardwise.plan.costs.pipeline import messages, recv_grad
from shardwise.plan.costs.recompute import shared
from shardwise.plan.memory.forecast import holdings_of, moments
from shardwise.plan.work.in_flight import Flight, Scene
from shardwise.spec.job.file import parse_job
from tests.unit.plan.asking import Layout, config, execution, find_model, held, job, memory, parse_hardware, shape, work

GIB = 2**30
ASKED = job(data={"max_length": 64})
PIPELINE = Layout(dp_shard=2, pp=2, schedule="1f1b")


def states(model, layout=None, **keys):
    """Bytes of weights, gradients and optimizer states on the fullest rank."""
    return max(h.weights + h.gradients + h.optimizer for h in held(job(), model, layout, **keys))


def test_the_classical_sixteen_bytes_are_ours_counted_otherwise():
    """Rajbhandari et al. (2020): 2 + 2 + 12 bytes. Ours: 4 + 4 + 8, as no 2-byte copy stays."""
    model = find_model("llama-2-7b", offline=True)
    found = [states(model, precision=one) / model.num_parameters for one in ("mixed", "fp32", "bf16")]
    assert found == pytest.approx([16, 16, 8], rel=1e-3)


@pytest.mark.parametrize(("stage", "saves"), [(1, 2), (2, 64), (3, 64)])
def test_zero_stages_over_64_ranks_save_what_their_split_says(stage, saves):
    """The paper's 4x, 8x, Nx are of 2 + 2 + 12 bytes; FSDP2's second stage shards states too."""
    model = find_model("llama-2-7b", offline=True)
    layout = Layout(dp_shard=64, zero_stage=stage, reshard_after_forward=stage == 3)
    assert states(model) / states(model, layout) == pytest.approx(saves, rel=0.05)


def test_what_fits_on_one_gpu_is_what_is_known_to_fit() -> None:
    """Not 32B in 16 bits on 80 GB; but 65B in 4 bits on 48 GB (Dettmers et al., 2023)."""
    model = find_model("qwen2.5-32b", offline=True)
    forecast = memory(job(), model, hardware="1x A100-SXM-80GB", precision="bf16", gradient_checkpointing="full")
    assert forecast.peak_low_bytes > 3 * forecast.capacity_bytes
    model = shape(config("llama", 8192, 22016, 80, 64, 64, vocab=32000))
    asked = job(method="qlora", data={"max_length": 512})
    forecast = memory(asked, model, hardware="1x RTX-6000-Ada", gradient_checkpointing="full", optimizer="adamw_8bit")
    assert 33 * GIB < forecast.peak_bytes < forecast.capacity_bytes


def test_eight_bit_states_take_a_quarter_and_small_tensors_stay_wide():
    """Matrices with rows of whole blocks of 256 are short; each tensor has a float32 count."""
    model, tensors = shape(hidden_size=256, intermediate_size=512), 6 * 9 + 3
    wide = 13 * 256  # norms
    short = model.num_parameters - wide
    (one,) = held(job(), model, optimizer="adamw_8bit")
    assert one.optimizer == 2 * 4 * wide + 2 * short + 2 * 4 * (short // 256) + 4 * tensors
    odd = shape(hidden_size=192)
    (one,) = held(job(), odd, optimizer="adamw_8bit")
    assert one.optimizer > 2 * 4 * odd.num_parameters * 0.9, "rows of 192 elements are no whole blocks"


def test_an_axis_has_a_communicator() -> None:
    gpu = parse_hardware("1x H100-SXM").gpu
    contexts = [
        memory(job(), shape(), layout).ranks[0].parts["context"] - gpu.context_bytes
        for layout in (Layout(), Layout(dp_replicate=2), Layout(dp_shard=2, tp=2), Layout(dp_shard=2, tp=2, pp=2))
    ]
    assert contexts == [0, contexts[1], 3 * contexts[1], 4 * contexts[1]], "several axes, and the world beside them"


def test_logits_are_of_the_positions_that_are_trained():
    def seen(trained):
        asked, run = job(data={"max_length": 512}), execution(gradient_checkpointing="full")
        keys = {"cluster": parse_hardware("cpu:1"), "execution": run, "first": 512, "later": 0}
        return forecast_seen(asked, model=shape(), trained=trained, **keys).peaks[0]

    few, most, nearly_all = (seen((count, 0)) for count in (128, 448, 480))
    assert most - few >= 320 * 2000 * 4
    assert most < nearly_all == seen((512, 0)) == seen(None), "480 of 512 are nearly all, which are not chosen from"


def test_stages_that_scale_keep_both() -> None:
    run = execution(Layout(pp=2), gradient_checkpointing="full")
    asked, models = job(data={"max_length": 512}), (shape(), replace(shape(), scales_stream=True))
    plain, scaled = (work(asked, model, run) for model in models)
    (first, last), (same, more) = (
        [list(moments(done, stage))[1][1]["communication"] for stage in holdings_of(done)] for done in (plain, scaled)
    )
    assert (same, more) == (first, last + plain.tokens * plain.model.hidden_size * 2)


def test_of_what_blocks_read_beside_the_stream_a_later_stage_has_what_it_is_sent() -> None:
    asked = parse_job("model: gemma-4-e2b\nmethod: lora\ndata: {max_length: 512}")
    model = profiled(find_model("gemma-4-e2b", offline=True), asked, [parse_hardware("8x H100-SXM")])
    done = work(asked, model, execution(Layout(pp=2), gradient_checkpointing="full"))
    first, last = (Scene(done, holding, Flight()) for holding in holdings_of(done))
    assert shared(first) == done.profiled(done.profile.shared) > 8 * shared(last)
    assert messages(first) - 512 * 2 * model.hidden_size == messages(last) == recv_grad(first, last=True)


def test_dropout_keeps_masks() -> None:
    model, asked = find_model("gpt2", offline=True), job(data={"max_length": 512})
    off = job(data={"max_length": 512}, train={"global_batch_size": 8, "disable_dropout": True})
    masks = 2 * 768 * 512 * 12
    on, without = (memory(one, model).peak_bytes for one in (asked, off))
    assert on - without == masks, "a byte for each"


def worked(layout, *, micros, once=True):
    chosen = execution(layout, gradient_accumulation_steps=micros, precision="fp32", reduce_once=once)
    return work(ASKED, shape(), chosen, "4x H100-SXM")


def scenes(layout, flight, **keys):
    asked = worked(layout, **keys)
    return {one.turn: one for one in turns(Scene(asked, holdings_of(asked)[0], flight))}


def test_gradients_are_there_once_a_backward_made_them_and_whole_until_the_last() -> None:
    asked = worked(PIPELINE, micros=2)
    holding = holdings_of(asked)[0]
    block, trained = holding.part.inventory.block.trained_elements, holding.part.inventory.trained_elements
    first = {name: alive["gradients"] for name, alive in moments(asked, holding, gradients=False) if "layer" in name}
    last_two = {"backward of layer 1": 4 * block, "backward of layer 0": 4 * 2 * block}
    assert first == {"forward of layer 2": 0, "backward of layer 2": 0, **last_two}
    last = {name: alive["gradients"] for name, alive in moments(asked, holding, gradients=True) if "layer" in name}
    assert last == {
        "backward of layer 2": 4 * trained,
        "backward of layer 1": pytest.approx(4 * (trained - block) + 4 * block / 2),
        "backward of layer 0": pytest.approx(4 * (trained - 2 * block) + 4 * 2 * block / 2),
    }
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
    assert [*scenes(Layout(dp_shard=4), Flight(gradients=True), micros=3, once=False)] == [None]
