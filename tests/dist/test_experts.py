"""Mixtures of experts train as one process does."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory
from shardwise.train.optim import learning_rate
from tests.dist.cells import (
    OPTIMIZERS,
    TOLERANCE,
    ZERO1,
    ZERO2,
    composed,
    execution,
    must_equal,
    prepare_cell,
    relative,
    spread,
    train_cell,
)
from tests.dist.test_checkpoints import interrupt, resume
from tests.dist.test_final import finish, loss_of
from tests.dist.test_memory import must_be_forecast
from tests.dist.worlds import run_world

#: A step of experts takes long, and a wrong one is wrong from the first.
SGD = {**OPTIMIZERS["sgd"], "max_steps": 6}

CELLS: dict[str, Execution] = {
    "fsdp(2)": spread(Layout(dp_shard=2), micros=2),
    "ddp(2)": spread(Layout(dp_replicate=2), micros=2),
    "zero1(2)": spread(Layout(dp_shard=2, **ZERO1)),
    "zero2(2)": spread(Layout(dp_shard=2, **ZERO2), micros=2),
    "fsdp(4), recompute": spread(Layout(dp_shard=4), gradient_checkpointing="full"),
    "hsdp(2 x 2), selective": spread(Layout(dp_replicate=2, dp_shard=2), gradient_checkpointing="selective"),
    "mp(2)": spread(Layout(pp=2, schedule="sequential"), micros=2),
    "gpipe(2)": spread(Layout(pp=2, schedule="gpipe"), micros=4),
    "1f1b(2), recompute": spread(Layout(pp=2), micros=4, gradient_checkpointing="full"),
    "interleaved(2)": spread(Layout(pp=2, schedule="interleaved"), micros=4),
    "zero bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "1f1b x fsdp": spread(Layout(pp=2, dp_shard=2), micros=2),
    "cp(2)": spread(Layout(cp=2), micros=2),
    "cp(2), whole weights": spread(Layout(cp=2, shard_over_cp=False), gradient_checkpointing="full"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "qwen2_moe", "olmoe"])
def test_experts_train_as_one_process_does(model, method, cell, single, make_job, tmp_path) -> None:
    chosen = replace(CELLS[cell], optimizer="sgd")
    if model == "olmoe" and chosen.layout.pp > 1:
        pytest.skip("transformers has no plan of its stages")
    job = make_job(model, method=method, train=SGD)
    must_equal(single(job), train_cell(job, tmp_path, chosen))


EP2 = Layout(dp_shard=2, ep=2)
DEALT: dict[str, Execution] = {
    "fsdp(2) x ep(2)": spread(EP2, micros=2),
    "ddp(2) x ep(2), recompute": spread(Layout(dp_replicate=2, ep=2), micros=2, gradient_checkpointing="full"),
    "fsdp(4) x ep(2)": spread(Layout(dp_shard=4, ep=2), micros=2),
    "fsdp(4) x ep(4), recompute": spread(Layout(dp_shard=4, ep=4), gradient_checkpointing="full"),
    "ddp(4) x ep(2)": spread(Layout(dp_replicate=4, ep=2), micros=2),
    "hsdp(2 x 2) x ep(2)": spread(Layout(dp_replicate=2, dp_shard=2, ep=2)),
    "zero2(4) x ep(2)": spread(Layout(dp_shard=4, ep=2, **ZERO2), micros=2),
    "zero1(2) x ep(2)": spread(Layout(dp_shard=2, ep=2, **ZERO1), micros=2),
    "zero1(4) x ep(2)": spread(Layout(dp_shard=4, ep=2, **ZERO1)),
    "zero1(2) x cp(2) x ep(2)": spread(Layout(dp_shard=2, cp=2, ep=2, **ZERO1)),
    "cp(2) x ep(2)": spread(Layout(cp=2, ep=2), micros=2),
    "fsdp(2) x cp(2) x ep(2)": spread(Layout(dp_shard=2, cp=2, ep=2), micros=2),
    "fsdp(2) x ep(2), 1f1b": spread(replace(EP2, pp=2), micros=4),
    "ddp(2) x ep(2), zero bubble": spread(Layout(dp_replicate=2, ep=2, pp=2, schedule="zero_bubble"), micros=2),
}


@pytest.mark.parametrize("cell", DEALT)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", ["qwen3_moe", "balanced mixtral", "qwen2_moe"])
def test_experts_that_are_dealt_among_ranks_train_as_one_process_does(
    model, method, cell, single, make_job, tmp_path
) -> None:
    beside = {"lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]}} if method == "lora" else {}
    job = make_job(model, method=method, train=SGD, **beside)
    must_equal(single(job), train_cell(job, tmp_path, replace(DEALT[cell], optimizer="sgd")))


@pytest.mark.parametrize(
    "cell", ["fsdp(2)", "ddp(2)", "zero bubble(2)", "1f1b(2), recompute", "hsdp(2 x 2), selective", "cp(2)"]
)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_routers_are_balanced_over_the_global_batch(method, cell, single, make_job, tmp_path) -> None:
    job = make_job("balanced mixtral", method=method, train=SGD)
    must_equal(single(job), train_cell(job, tmp_path, replace(CELLS[cell], optimizer="sgd")))


def test_the_loss_of_balanced_routers_is_that_of_transformers(make_job, tmp_path) -> None:
    job = make_job("balanced mixtral", train={**SGD, "max_steps": 3, "max_grad_norm": 0.0})
    losses = train_cell(job, tmp_path / "ours", spread(micros=4, optimizer="sgd"))[0].series("loss")
    (theirs,) = run_world(1, _losses_of_transformers, prepare_cell(job, tmp_path / "theirs"))
    assert relative(theirs, losses) <= TOLERANCE


def _losses_of_transformers(run: RunDirectory) -> list[float]:
    """Of each step the model's own loss on the global batch in one forward, its padding masked."""
    built = composed(run, spread(optimizer="sgd"))
    model = AutoModelForCausalLM.from_pretrained(built.job.model, dtype=torch.float32).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=built.job.train.learning_rate)
    losses: list[float] = []
    for batch in built.batches.from_(0):
        (micro,) = batch.micro_batches
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(built.optimizer)
        labels = torch.cat([torch.full((len(micro.labels), 1), -100), micro.labels[:, :-1]], dim=1)
        loss = model(input_ids=micro.input_ids, attention_mask=micro.real.long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        built.optimizer.step()
        built.schedule.step()
        losses.append(loss.item())
    return losses


HOLDING = {
    "fsdp(2), 5 experts": ("mixtral", Layout(dp_shard=2)),
    "fsdp(3), cut inside": ("qwen3_moe", Layout(dp_shard=3)),
    "zero1(3)": ("qwen3_moe", Layout(dp_shard=3, **ZERO1)),
    "fsdp(4) x ep(2)": ("qwen3_moe", Layout(dp_shard=4, ep=2)),
    "ddp(2) x ep(2)": ("qwen2_moe", Layout(dp_replicate=2, ep=2)),
    "hsdp(2 x 2) x ep(2)": ("qwen3_moe", Layout(dp_replicate=2, dp_shard=2, ep=2)),
    "zero1(4) x ep(2)": ("qwen3_moe", Layout(dp_shard=4, ep=2, **ZERO1)),
    "fsdp(2) x ep(2) x 1f1b": ("balanced mixtral", Layout(dp_shard=2, ep=2, pp=2)),
}


@pytest.mark.parametrize("name", HOLDING)
def test_ranks_hold_of_experts_what_is_forecast(name, make_job, tmp_path) -> None:
    model, layout = HOLDING[name]
    chosen = execution(layout, micro_batch_size=1, gradient_accumulation_steps=2)
    must_be_forecast(make_job(model, train={"max_steps": 1}), chosen, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("fsdp(2)", "ddp(2) x ep(2), recompute"),
        ("fsdp(4) x ep(2)", "1f1b(2), recompute"),
        ("zero1(4) x ep(2)", "fsdp(2)"),
        ("fsdp(2)", "zero1(4) x ep(2)"),
    ],
)
def test_a_checkpoint_of_experts_loads_under_another_layout(before, after, single, make_job, tmp_path) -> None:
    job, known = make_job("qwen3_moe", train={"max_steps": 10}), CELLS | DEALT
    run = prepare_cell(job, tmp_path / "moved")
    interrupt(run, known[before], after=5)
    start, resumed = run_world(known[after].layout.world_size, resume, run, known[after])[0]
    assert start == 5
    assert relative(single(job).series("loss"), resumed.series("loss")) <= 1e-6


@pytest.mark.parametrize("cell", ["fsdp(2) x ep(2)", "zero2(2)"])
@pytest.mark.parametrize("model", ["balanced mixtral", "olmoe"])
def test_experts_are_saved_as_from_pretrained_reads_them(model, cell, make_job, tmp_path) -> None:
    job = make_job(model, train={"max_steps": 3})
    final, trained, loss = finish(job, tmp_path, (CELLS | DEALT)[cell], shard_bytes=60_000)
    loaded, info = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(loaded.get_parameter(name), weight) for name, weight in trained.weights.items())
    assert loss_of(loaded.eval(), final) == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")  # as PEFT made them
@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize("model", ["mixtral", "wide qwen3_moe"])
def test_adapters_on_experts_are_saved_as_peft_reads_them(model, method, make_job, models, tmp_path) -> None:
    """Of QLoRA with experts left wide; test_quantised_experts.py has others."""
    if method == "qlora" and model == "mixtral":
        pytest.skip("its matrices are narrower than blocks")
    lora, wide = {"r": 4, "lora_alpha": 8}, {"quantize_experts": False} if method == "qlora" else {}
    job = make_job(model, method=method, lora=lora, train={"max_steps": 3, "learning_rate": 0.01, **wide})
    final, _, loss = finish(job, tmp_path, CELLS["fsdp(2)"])
    if method == "lora":
        base: Any = AutoModelForCausalLM.from_pretrained(models[model])
    else:
        quantised = BitsAndBytesConfig.from_dict(json.loads((final / "quantization_config.json").read_text()))
        base = AutoModelForCausalLM.from_pretrained(models[model], quantization_config=quantised)
    adapted = PeftModel.from_pretrained(base, str(final)).eval()
    for module in adapted.modules():
        # Without gradients bitsandbytes multiplies in bfloat16 on some CPUs.
        vars(module)["support_avx512bf16_for_cpu"] = False
    assert loss_of(adapted, final) == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["fsdp(2)", "ddp(2)", "1f1b(2), recompute"])
def test_qlora_that_leaves_experts_wide_trains_as_one_process_does(cell, single, make_job, tmp_path) -> None:
    job = make_job("wide qwen3_moe", method="qlora", train={"quantize_experts": False, **SGD})
    must_equal(single(job), train_cell(job, tmp_path, replace(CELLS[cell], optimizer="sgd")))
