"""What `train.offload: auto` becomes is the best of stating each, and the least of equals."""

import pytest

from shardwise.plan.costs.recompute import saved_on_host
from shardwise.plan.memory.forecast import forecast_memory, holdings_of
from shardwise.plan.rates import links
from shardwise.plan.time.step import forecast_time
from tests.unit.plan.asking import Layout, execution, find_model, job, parse_hardware, plan, work

BATCH = "train: {global_batch_size: 64, compile: false}\n"


def with_offload(text, offload):
    return text.replace("train: {", f"train: {{offload: {offload}, ")


@pytest.mark.parametrize(
    ("model", "length", "stated"),
    [("qwen3-8b", 4096, ""), ("llama-3.1-8b", 2048, ""), ("qwen3-8b", 4096, "layout: [mp, pp, fsdp]\n")],
)
def test_more_offload_than_the_least_that_fits_is_taken_where_it_is_better(model, length, stated):
    text = f"{stated}data: {{max_length: {length}}}\n{BATCH}"
    chosen, less = (plan(model, "4x RTX-4090", asked).best for asked in (text, with_offload(text, "optimizer")))
    assert chosen.execution.offload == "parameters"
    assert less is None or less.time.step_seconds > chosen.time.step_seconds


def test_a_plan_says_what_offload_is_good_for_and_what_would_be_without():
    made = plan("qwen3-8b", "4x RTX-4090", f"data: {{max_length: 4096}}\n{BATCH}")
    (sentence,) = (one for one in made.best.reasons if one.startswith("offload is"))
    because = "offload is parameters because nothing fits without, and fsdp, the best with offload optimizer, is 61.6 %"
    assert sentence.startswith(because)
    others = {one.strategy: one.reason for one in made.rejected}
    assert others["fsdp x tp"].startswith("88 % slower with offload optimizer (1 min 29 s against 47 s a step): ")
    assert "waits for other stages or the host" in others["fsdp x mp"]
    held = plan("qwen3-8b", "4x RTX-4090", f"layout: [pp]\ndata: {{max_length: 4096}}\n{BATCH}").best
    assert held.execution.offload == "parameters"
    assert held.time.step_seconds > made.best.time.step_seconds


def test_the_fewest_gpus_may_need_the_hosts_memory_and_the_plan_says_how_many_do_without():
    text = f"goal: fewest-gpus\ndata: {{max_length: 4096}}\n{BATCH}"
    fewest = plan("llama-3.1-8b", "8x H100-SXM", text).best
    assert (fewest.execution.layout.world_size, fewest.execution.offload) == (1, "parameters")
    because = "offload is parameters because nothing fits so few GPUs without: "
    assert any(one.startswith(because) for one in fewest.reasons)
    assert "without offload the fewest GPUs are 2; to have those, state train.offload: none" in fewest.reasons
    without = plan("llama-3.1-8b", "8x H100-SXM", with_offload(text, "none")).best
    assert without.execution.layout.world_size == 2
    assert fewest.time.step_seconds > 2.9 * without.time.step_seconds
    few = plan("qwen3-8b", "4x RTX-4090", text).best
    assert few.execution.layout.world_size == 3
    note = "with no more than offload optimizer the fewest GPUs are 4; to have those, state train.offload: optimizer"
    assert note in few.reasons


def test_what_selective_blocks_save_goes_to_the_host_at_no_time_either():
    """Input, four products, attention with its sums, and the first halves of adapters."""
    model, train = find_model("llama-3.1-8b", offline=True), {"global_batch_size": 16}
    asked = job(method="lora", data={"max_length": 2048}, train=train)
    full, plain, offloaded = (
        work(asked, model, execution(micro_batch_size=2, gradient_checkpointing=kind, compile=True))
        for kind in ("full", "selective", "selective_offloaded")
    )
    tokens, width = 2 * 2048, 4096 * 2
    tensors = [width, width, width / 4, width / 4, width, *[32] * 7, width + 32 * 4]
    less = forecast_memory(plain).peak_bytes - forecast_memory(offloaded).peak_bytes
    assert 28 * tokens * sum(tensors) < less <= 30 * tokens * sum(tensors)
    (holding,) = holdings_of(offloaded)
    assert saved_on_host(offloaded, holding) >= 32 * tokens * sum(tensors)
    assert forecast_time(offloaded).step_seconds == forecast_time(plain).step_seconds
    assert forecast_time(offloaded).step_seconds < 0.9 * forecast_time(full).step_seconds


@pytest.mark.parametrize(("hardware", "rate"), [("1x H100-SXM", 50.4e9), ("8x H100-SXM", 25.2e9), ("1x A100", 25.2e9)])
def test_copies_take_four_fifths_of_the_link_to_the_host_and_half_of_it_beside_others(hardware, rate):
    assert links.copy_seconds(parse_hardware(hardware), rate) == pytest.approx(1.0)


def test_a_link_that_is_slower_than_the_computation_is_waited_for(monkeypatch):
    asked, model = job(method="lora", data={"max_length": 2048}), find_model("llama-3.1-8b", offline=True)
    chosen = execution(micro_batch_size=4, gradient_checkpointing="offloaded")
    hidden = forecast_time(work(asked, model, chosen)).step_seconds
    monkeypatch.setattr(links, "_HOST_SHARE", 1 / 630)
    copies = 2 * 32 * 4 * 2048 * 4096 * 2 / 1e8
    assert copies < forecast_time(work(asked, model, chosen)).step_seconds < copies + hidden


def test_what_blocks_save_on_the_host_is_counted_and_said() -> None:
    asked, model = job(data={"max_length": 1024}), find_model("llama-3.1-8b", offline=True)
    chosen = execution(Layout(pp=4), gradient_accumulation_steps=8, gradient_checkpointing="offloaded")
    made = work(asked, model, chosen, hardware="4x H100-SXM")
    stages = holdings_of(made)
    blocks = [len(holding.part.span) for holding in stages]
    found = [saved_on_host(made, holding) for holding in stages]
    assert found == [flight * count * 1024 * 4096 * 2 for flight, count in zip((4, 3, 2, 1), blocks, strict=True)]
    text = "method: lora\ndata: {max_length: 2048}\ntrain: {micro_batch_size: 4, gradient_checkpointing: offloaded}\n"
    reasons = plan("llama-3.1-8b", "1x H100-SXM", text).best.reasons
    said = "gradient_checkpointing is offloaded as asked: what blocks save waits in the host's memory, which holds 2.0 "
    assert any(reason.startswith(said) for reason in reasons)


def test_on_the_fewest_gpus_offloads_compete():
    """Nothing fits two GPUs without any; `optimizer` is slower there than `parameters`."""
    text = "data: {max_length: 1024}\ntrain: {global_batch_size: 64}\n"
    fewest = plan("qwen3-8b", "4x RTX-4090", f"goal: fewest-gpus\n{text}").best
    assert fewest.execution == plan("qwen3-8b", f"{fewest.execution.layout.world_size}x RTX-4090", text).best.execution
