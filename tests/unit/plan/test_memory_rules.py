"""Rules of thumb that everyone quotes, beside the forecast, and what must never be: more that needs more."""

from dataclasses import replace

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan import forecast_seen
from shardwise.plan.memory.forecast import holdings_of, moments
from shardwise.spec.layout.axes import Layout
from tests.unit.plan.asking import execution, held, job, memory, shape, work

GIB = 2**30


def states(model, layout=None, **keys):
    """Bytes of weights, gradients and optimizer states on the fullest rank."""
    return max(h.weights + h.gradients + h.optimizer for h in held(job(), model, layout, **keys))


def test_the_classical_sixteen_bytes_are_ours_counted_otherwise():
    """Rajbhandari et al. (2020): 2 weight + 2 gradient + 12 master, momentum, variance. Ours: 4 + 4 + 8, no 2-byte copy
    of weights or gradients outlives its use; autocast or FSDP makes it anew."""
    model = find_model("llama-2-7b", offline=True)
    assert states(model) / model.num_parameters == pytest.approx(16, rel=1e-3)
    assert states(model, precision="fp32") / model.num_parameters == pytest.approx(16, rel=1e-3)
    assert states(model, precision="bf16") / model.num_parameters == pytest.approx(8, rel=1e-3)


@pytest.mark.parametrize(("stage", "saves"), [(1, 2), (2, 64), (3, 64)])
def test_zero_stages_over_64_ranks_save_what_their_split_says(stage, saves):
    """The paper's 4x, 8x and Nx are of 2 + 2 + 12 bytes: 16 / 4, 16 / 2 and N. Of 4 + 4 + 8 the first stage leaves 8;
    the second is FSDP2 that keeps gathered weights through a step, whose states are sharded as the third's."""
    model = find_model("llama-2-7b", offline=True)
    layout = Layout(dp_shard=64, zero_stage=stage, reshard_after_forward=stage == 3)
    assert states(model) / states(model, layout) == pytest.approx(saves, rel=0.05)


def test_zero_2_keeps_whole_weights_through_a_step_and_zero_3_does_not():
    model = find_model("llama-2-7b", offline=True)
    two = memory(job(), model, Layout(dp_shard=64, zero_stage=2, reshard_after_forward=False))
    three = memory(job(), model, Layout(dp_shard=64))
    assert two.peak_bytes - three.peak_bytes > 1.8 * model.num_parameters


def test_a_30b_model_cannot_be_trained_on_one_80_gb_gpu_in_16_bit_at_batch_1():
    model = find_model("qwen2.5-32b", offline=True)
    forecast = memory(job(), model, hardware="1x A100-SXM-80GB", precision="bf16", gradient_checkpointing="full")
    assert forecast.peak_low_bytes > 3 * forecast.capacity_bytes


def test_a_65b_model_in_4_bit_trains_on_one_48_gb_gpu():
    """Dettmers et al. (2023), whose headline this is."""
    model = shape(
        hidden_size=8192,
        intermediate_size=22016,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=64,
        vocab_size=32000,
    )
    asked = job(method="qlora", data={"max_length": 512})
    forecast = memory(asked, model, hardware="1x RTX-6000-Ada", gradient_checkpointing="full", optimizer="adamw_8bit")
    assert 33 * GIB < forecast.peak_bytes < forecast.capacity_bytes


def test_eight_bit_states_take_a_quarter_and_small_tensors_stay_wide():
    """Matrices whose rows are whole blocks of 256 are short; a float32 count of steps lies beside each tensor's."""
    model = shape(hidden_size=256, intermediate_size=512)
    tensors = 6 * 9 + 3
    wide = 13 * 256  # norms
    short = model.num_parameters - wide
    (one,) = held(job(), model, optimizer="adamw_8bit")
    assert one.optimizer == 2 * 4 * wide + 2 * short + 2 * 4 * (short // 256) + 4 * tensors
    odd = shape(hidden_size=192)
    (one,) = held(job(), odd, optimizer="adamw_8bit")
    assert one.optimizer > 2 * 4 * odd.num_parameters * 0.9, "rows of 192 elements are no whole blocks"


def test_offload_leaves_nothing_persistent_on_the_gpu_but_what_is_gathered():
    model = find_model("llama-3.1-8b", offline=True)
    kept = {offload: held(job(), model, offload=offload)[0] for offload in ("none", "optimizer", "parameters")}
    assert kept["optimizer"].optimizer == 0
    assert kept["optimizer"].weights == kept["none"].weights
    assert kept["parameters"].weights == kept["parameters"].gradients == 0
    assert memory(job(), model, offload="parameters").ranks[0].parts["communication"] > 2 * model.embedding_parameters


def test_each_axis_that_talks_has_a_communicator():
    asked, model = job(), shape()
    gpu = parse_hardware("1x H100-SXM").gpu
    contexts = [
        memory(asked, model, layout).ranks[0].parts["context"] - gpu.context_bytes
        for layout in (Layout(), Layout(dp_replicate=2), Layout(dp_shard=2, tp=2), Layout(dp_shard=2, tp=2, pp=2))
    ]
    assert contexts == [0, contexts[1], 3 * contexts[1], 4 * contexts[1]], "several axes, and the world beside them"


def test_keys_of_eight_ranks_make_attention_the_fullest_moment_of_a_block():
    """For attention's backward a rank has keys and values of the whole row, and their gradients twice."""
    asked, model = job(data={"max_length": 8192}), shape(num_attention_heads=4, num_key_value_heads=4)
    done = work(asked, model, execution(Layout(cp=8, shard_over_cp=False), gradient_checkpointing="none"))
    alive = dict(moments(done, holdings_of(done)[0]))["backward of layer 5"]
    assert alive["communication"] == 3 * 8 * 1024 * 2 * model.hidden_size * 2


def test_logits_are_of_the_positions_that_are_trained():
    def seen(trained):
        asked, run = job(data={"max_length": 512}), execution(gradient_checkpointing="full")
        cluster = parse_hardware("cpu:1")
        keys = {"cluster": cluster, "execution": run, "first": 512, "later": 0}
        return forecast_seen(asked, model=shape(), trained=trained, **keys).peaks[0]

    few, most, nearly_all = (seen((count, 0)) for count in (128, 448, 480))
    assert most - few >= 320 * 2000 * 4
    assert most < nearly_all == seen((512, 0)) == seen(None), "480 of 512 are nearly all, which are not chosen from"


def test_a_stage_whose_code_multiplies_what_it_received_keeps_both():
    run = execution(Layout(pp=2), gradient_checkpointing="full")
    plain, scaled = (
        work(job(data={"max_length": 512}), replace(shape(), scales_stream=scales), run) for scales in (False, True)
    )
    (first, last), (same, more) = (
        [list(moments(done, stage))[1][1]["communication"] for stage in holdings_of(done)] for done in (plain, scaled)
    )
    assert (same, more) == (first, last + plain.tokens * plain.model.hidden_size * 2)


def test_dropout_of_the_model_keeps_masks():
    model, asked = find_model("gpt2", offline=True), job(data={"max_length": 512})
    off = job(data={"max_length": 512}, train={"global_batch_size": 8, "disable_dropout": True})
    masks = 2 * 768 * 512 * 12
    on, without = (memory(one, model).peak_bytes for one in (asked, off))
    assert on - without == masks, "a byte for each"
