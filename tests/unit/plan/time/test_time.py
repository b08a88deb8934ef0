"""Forecasts of time: where this project began, what holds between layouts, and lengths of rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.plan.time.pipeline import StageSeconds, rank_ends, walk
from shardwise.plan.time.step import forecast_time
from shardwise.spec.data_facts import Lengths
from shardwise.spec.layout.axes import Layout, Schedule
from shardwise.spec.plan.forecast import MemoryForecast, Plan, TimeForecast
from tests.unit.plan.asking import execution, find_model, job, plan, shape, work

SCHEDULES: tuple[Schedule, ...] = ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble")
MP = Layout(pp=4, schedule="sequential")
DDP = Layout(dp_replicate=4)
FSDP = Layout(dp_shard=4)
ZERO1 = Layout(dp_shard=4, zero_stage=1, reshard_after_forward=False)
EVERY = (
    Layout(),
    *(Layout(pp=4, schedule=schedule) for schedule in SCHEDULES if schedule != "interleaved"),
    *(Layout(pp=2, schedule="interleaved"), DDP, FSDP, ZERO1),
    Layout(dp_shard=4, zero_stage=2, reshard_after_forward=False),
    *(Layout(dp_replicate=2, dp_shard=2), Layout(tp=4), Layout(cp=4), Layout(dp_shard=2, tp=2)),
    *(Layout(dp_shard=2, pp=2), Layout(dp_replicate=2, pp=2), Layout(tp=2, pp=2), Layout(dp_shard=2, tp=2, pp=2)),
)

STATED = "train: {micro_batch_size: 2, global_batch_size: 8, gradient_checkpointing: none, loss: full}\nlayout: ddp\n"


def forecast(model, layout, *, micro=1, accumulation=1, method="lora", hardware="4x RTX-6000-Ada", length=1024, **keys):
    """Time of an execution whose global batch is what its ranks see; and of a token."""
    return forecast_time(made_of(model, layout, micro, accumulation, method, hardware, length, **keys))


def made_of(model, layout, micro, accumulation, method="lora", hardware="4x RTX-6000-Ada", length=1024, **keys):
    batch = micro * accumulation * layout.data_world_size
    asked = job(method=method, data={"max_length": length, "num_rows": 1024}, train={"global_batch_size": batch})
    steps = execution(layout, micro_batch_size=micro, gradient_accumulation_steps=accumulation, **keys)
    return work(asked, model, steps, hardware)


def seed(name, layout, *, micro, accumulation):
    """(seconds, GPU) of LoRA on four RTX 6000 Ada, 1,024 rows of 1,024 tokens."""
    time = forecast(find_model(name, offline=True), layout, micro=micro, accumulation=accumulation)
    return 1024 * 1024 / time.tokens_per_second, time.gpu_utilization


def test_the_runs_this_project_began_with_take_as_long_as_they_took() -> None:
    mp, ddp, fsdp = (seed("tinyllama-1.1b", layout, micro=16, accumulation=2) for layout in (MP, DDP, FSDP))
    assert mp[0] / ddp[0] == pytest.approx(233 / 59, rel=0.25)
    assert mp[1] == pytest.approx(0.24, rel=0.25)
    assert ddp[1] == pytest.approx(0.90, rel=0.25)
    assert ddp[0] <= fsdp[0]
    mp, fsdp = (seed("codellama-34b", layout, micro=4, accumulation=4) for layout in (MP, FSDP))
    assert mp[0] / fsdp[0] == pytest.approx(47 / 30, rel=0.25)
    assert mp[1] == pytest.approx(0.20, rel=0.25)
    assert fsdp[1] == pytest.approx(1.0, rel=0.05)


def test_a_cut_backward_of_sharded_weights_gathers_and_reduces_once_a_step():
    """Whatever the micro-batches; 1f1b does for each: of 2 ranks 17 rounds of 16, 3 of 2."""
    kept = {"dp_shard": 2, "pp": 2, "zero_stage": 2, "reshard_after_forward": False}
    model = shape(num_hidden_layers=8, hidden_size=4096, intermediate_size=11008)

    def step(schedule: Schedule, accumulation: int):
        layout = Layout(**kept, schedule=schedule)
        asked = {"accumulation": accumulation, "method": "full", "hardware": "4x RTX-4090", "length": 256}
        return forecast(model, layout, **asked)

    once = {schedule: step(schedule, 2) for schedule in ("1f1b", "zero_bubble")}
    often = {schedule: step(schedule, 16) for schedule in ("1f1b", "zero_bubble")}
    assert often["1f1b"].step_seconds > 5 * once["1f1b"].step_seconds
    assert often["zero_bubble"].step_seconds < 3 * once["zero_bubble"].step_seconds
    assert often["zero_bubble"].step_seconds < 0.5 * often["1f1b"].step_seconds


def test_the_bubble_of_equal_stages_is_the_one_that_its_authors_state():
    stages = (StageSeconds(1.0, 2.0, 1.0),) * 4
    for schedule in ("gpipe", "1f1b"):
        assert max(rank_ends(schedule, stages=stages, num_micro_batches=12, send=0.0)) == pytest.approx((12 + 3) * 3)
    zero = rank_ends("zero_bubble", stages=stages, num_micro_batches=12, send=0.0)
    assert max(zero) == pytest.approx(12 * 3 + 3 * (1 + 1 - 1))


seconds = st.floats(0.8, 1.25)
balanced_stages = st.lists(st.builds(StageSeconds, seconds, seconds, st.floats(0.1, 0.4)), min_size=4, max_size=4)


@settings(max_examples=60)
@given(st.sampled_from(SCHEDULES), balanced_stages, st.integers(1, 80), st.floats(0.0, 0.2))
def test_many_micro_batches_take_as_long_as_if_each_were_walked_through(schedule, stages, micros, send):
    quick = max(rank_ends(schedule, stages=tuple(stages), num_micro_batches=micros, send=send))
    walked = max(walk(schedule, stages=tuple(stages), num_micro_batches=micros, send=send))
    assert quick == pytest.approx(walked, rel=0.01)


@pytest.mark.parametrize("layout", [FSDP, Layout(pp=4, schedule="1f1b")], ids=str)
def test_counting_routes_for_the_loss_of_routers_costs_one_more_forward(layout):
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8, "vocab_size": 2000}
    plain, counted = (
        forecast(shape({**sizes, "model_type": "mixtral", **keys}), layout, accumulation=8, method="full")
        for keys in ({"output_router_logits": False}, {"output_router_logits": True})
    )
    assert 1.2 < counted.step_seconds / plain.step_seconds < 1.45
    none = shape({**sizes, "model_type": "mixtral", "output_router_logits": True, "router_aux_loss_coef": 0.0})
    assert forecast(none, layout, accumulation=8, method="full") == plain


def answer(lengths: Lengths | None, *, packing: bool = False) -> Plan:
    text = f"data: {{max_length: 1024, packing: {str(packing).lower()}}}\n{STATED}"
    return plan("tinyllama-1.1b", "4x A100-80GB-SXM", text, lengths=lengths)


def best(lengths: Lengths | None, *, packing: bool = False) -> tuple[MemoryForecast, TimeForecast]:
    found = answer(lengths, packing=packing).best
    return found.memory, found.time


def test_memory_is_for_the_longest_row_and_time_and_throughput_for_the_mean_one() -> None:
    full, longest, mean = best(None), best(Lengths(longest=500, mean=500)), best(Lengths(longest=500, mean=100))
    assert longest[0].peak_bytes < full[0].peak_bytes
    assert mean[0] == longest[0]
    assert mean[1].step_seconds < longest[1].step_seconds < full[1].step_seconds
    assert best(Lengths(longest=1024, mean=1024)) == best(None)
    assert answer(Lengths(longest=500, mean=100)).job == answer(None).job
    whole, parts = (best(Lengths(longest=1024, mean=1024, document=of), packing=True)[1] for of in (1024, 64))
    assert parts.step_seconds < whole.step_seconds
    assert whole == best(None, packing=True)[1]
    short, full = best(Lengths(longest=500, mean=90.5))[1], best(Lengths(longest=500, mean=96))[1]
    assert short.step_seconds == full.step_seconds
    assert short.tokens_per_second * short.step_seconds == pytest.approx(8 * 90.5)
    assert short.mfu == pytest.approx(full.mfu * 90.5 / 96)
