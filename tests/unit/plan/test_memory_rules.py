"""Rules of thumb that everyone quotes, beside the forecast, and what must never be: more that needs more."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
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
    two = memory(job(), model, Layout(dp_shard=64, zero_stage=2, reshard_after_forward=False), loss="chunked")
    three = memory(job(), model, Layout(dp_shard=64), loss="chunked")
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
    model = shape()
    small = 2 * 4 * (13 * 128)  # norms of 128 elements
    large = model.num_parameters - 13 * 128
    (one,) = held(job(), model, optimizer="adamw_8bit")
    assert one.optimizer == small + 2 * large + 2 * 4 * (large // 256)


def test_offload_leaves_nothing_persistent_on_the_gpu_but_what_is_gathered():
    model = find_model("llama-3.1-8b", offline=True)
    kept = {offload: held(job(), model, offload=offload)[0] for offload in ("none", "optimizer", "parameters")}
    assert kept["optimizer"].optimizer == 0
    assert kept["optimizer"].weights == kept["none"].weights
    assert kept["parameters"].weights == kept["parameters"].gradients == 0
    assert memory(job(), model, offload="parameters").ranks[0].parts["communication"] > 2 * model.embedding_parameters


def test_units_of_several_blocks_and_more_prefetch_take_the_memory_that_they_gather():
    """Llama 3.1 8B has blocks of 218 million parameters: units of 400 million are pairs of them."""
    model = find_model("llama-3.1-8b", offline=True)
    block = 2 * model.layer_parameters

    def gathered(**keys):
        chosen = work(job(), model, execution(Layout(dp_shard=8, **keys), gradient_checkpointing="full"))
        (one,) = holdings_of(chosen)
        alive = dict(moments(chosen, one))
        return one.weights, *(alive[f"{way} of layer {at}"]["communication"] for way, at in WAYS)

    kept, forward, last, first = gathered()
    in_reduction = 3 * block  # gradients in two bytes, and the buffer of the unit before in four
    assert gathered(prefetch=2) == (kept, forward + block, last + block, first)
    pairs = (kept, forward + 2 * block, last + 2 * block + in_reduction, first + block + in_reduction)
    assert gathered(min_num_params=400_000_000) == pytest.approx(pairs)


#: Moments of a step, and the blocks they are about.
WAYS = (("forward", 31), ("backward", 31), ("backward", 0))


odd_shapes = st.fixed_dictionaries(
    {
        "num_attention_heads": st.sampled_from([1, 3, 7]),
        "head_dim": st.sampled_from([2, 10, 80]),
        "hidden_size": st.sampled_from([6, 42, 210]),
        "intermediate_size": st.integers(1, 999),
        "num_hidden_layers": st.integers(3, 9),
        "vocab_size": st.integers(1, 9999),
        "num_key_value_heads": st.just(1),
    }
)


@given(
    odd_shapes,
    st.sampled_from([{}, {"tp": 5}, {"pp": 3}, {"dp_shard": 7}, {"cp": 3}, {"pp": 2, "tp": 3, "dp_replicate": 2}]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from(["mixed", "bf16", "fp16", "fp32"]),
)
def test_odd_shapes_have_finite_forecasts_and_always_the_same(config, axes, method, precision):
    model = shape({"model_type": "llama", **config})
    one, other = (memory(job(method=method), model, Layout(**axes), precision=precision) for _ in range(2))
    assert one == other
    for rank in one.ranks:
        assert all(math.isfinite(count) and count >= 0 for count in rank.parts.values())
        assert rank.peak_bytes == sum(rank.parts.values()) > 0


def test_each_axis_that_talks_has_a_communicator():
    asked, model = job(), shape()
    gpu = parse_hardware("1x H100-SXM").gpu
    contexts = [
        memory(asked, model, layout).ranks[0].parts["context"] - gpu.context_bytes
        for layout in (Layout(), Layout(dp_replicate=2), Layout(dp_shard=2, tp=2), Layout(dp_shard=2, tp=2, pp=2))
    ]
    assert contexts == [0, contexts[1], 3 * contexts[1], 4 * contexts[1]], "several axes, and the world beside them"


def named_moments(layout=None, **keys):
    one = work(job(**keys), shape(), execution(layout or Layout()), f"{(layout or Layout()).world_size}x H100-SXM")
    return [dict(moments(one, holding)) for holding in holdings_of(one)]


def test_only_a_job_that_evaluates_has_an_evaluation():
    (without,) = named_moments()
    assert "evaluation" not in without
    for keys in ({"data": {"eval_fraction": 0.1}}, {"data": {"num_rows": 9}, "train": {"eval_steps": 2}}):
        (evaluates,) = named_moments(**keys)
        assert set(evaluates) - set(without) == {"evaluation"}
