"""Mixtures of experts train as one process does, and hold what is forecast."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import shardwise
from shardwise.errors import UnsupportedError
from shardwise.models.built.shape import shape_of
from shardwise.models.load import build_on_meta, read_config
from shardwise.models.routing import Balance, mixtures, noise_left_out, refuse_to_deal, route
from shardwise.models.wrapper import text_config
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.train.build import Build
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, move, prepare_cell, run_built, spread, train_rank
from tests.dist.compare import TOLERANCE, relative
from tests.dist.memory.test_memory import must_be_forecast
from tests.dist.saved.test_final import adapted, finish, loss_of, must_load
from tests.dist.tiny import tiny_config
from tests.dist.worlds import correct_routers, installed, run_world, said_by
from tests.marks import CI

#: A step of experts takes long, and a wrong one is wrong from the first.
STEPS = 6

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


#: Of olmoe transformers has no plan of stages; routers are balanced over the global batch.
TRAINED = [(model, cell) for model in ("mixtral", "qwen3_moe", "qwen2_moe") for cell in CELLS]
BALANCED = ("fsdp(2)", "ddp(2)", "zero bubble(2)", "1f1b(2), recompute", "hsdp(2 x 2), selective", "cp(2)")
TRAINED += [("balanced mixtral", cell) for cell in BALANCED]
TRAINED += [("olmoe", cell) for cell in CELLS if CELLS[cell].layout.pp == 1]


@pytest.mark.parametrize(("model", "cell"), TRAINED)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_experts_train_as_one_process_does(method, model, cell, must_train_alike) -> None:
    must_train_alike(CELLS[cell], model, method=method, train={"max_steps": STEPS})


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
def test_experts_that_are_dealt_among_ranks_train_as_one_process_does(model, method, cell, must_train_alike) -> None:
    beside = {"lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]}} if method == "lora" else {}
    must_train_alike(DEALT[cell], model, method=method, train={"max_steps": STEPS}, **beside)


@pytest.mark.parametrize("layout", [Layout(dp_shard=2, tp=2), Layout(dp_replicate=2, dp_shard=2, ep=2)])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", ["deepseek_v3", "balanced mixtral"])
def test_products_train_a_mixture_as_one_process_does(model, method, layout, must_train_alike) -> None:
    """Also routers balanced under tp, and adapters on dealt experts."""
    must_train_alike(spread(layout, micros=2), model, method=method, train={"max_steps": STEPS})


def test_the_loss_of_balanced_routers_is_that_of_transformers(make_job, tmp_path) -> None:
    train = {"max_steps": 3, "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "warmup_steps": 0}
    run = prepare_cell(make_job("balanced mixtral", train=OPTIMIZERS["sgd"] | train), tmp_path)
    (theirs,) = run_built(_losses_of_transformers, run, spread(optimizer="sgd"))
    losses = run_built(train_rank, run, spread(micros=4, optimizer="sgd"))[0].series("loss")
    assert relative(theirs, losses) <= TOLERANCE


def _losses_of_transformers(built: Build) -> list[float]:
    """Of each step the model's own loss on the global batch in one forward, its padding masked."""
    model = AutoModelForCausalLM.from_pretrained(built.job.model, dtype=torch.float32).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=built.job.train.learning_rate)
    losses: list[float] = []
    for batch in built.batches.from_(0):
        (micro,) = batch.micro_batches
        labels = torch.cat([torch.full((len(micro.labels), 1), -100), micro.labels[:, :-1]], dim=1)
        loss = model(input_ids=micro.input_ids, attention_mask=micro.real.long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


HELD = [
    ("mixtral", "full", Layout(dp_shard=2)),  # of 5 experts
    ("qwen3_moe", "full", Layout(dp_shard=3)),  # cut inside
    ("qwen3_moe", "full", Layout(dp_shard=3, **ZERO1)),
    ("qwen3_moe", "full", Layout(dp_shard=4, ep=2)),
    pytest.param("qwen2_moe", "full", Layout(dp_replicate=2, ep=2), marks=CI),
    ("qwen3_moe", "full", Layout(dp_replicate=2, dp_shard=2, ep=2)),
    ("qwen3_moe", "full", Layout(dp_shard=4, ep=2, **ZERO1)),
    ("balanced mixtral", "full", Layout(dp_shard=2, ep=2, pp=2)),
    *(("qwen2_moe", method, layout) for method in ("full", "lora") for layout in (Layout(tp=2), EP2)),
    *(("deepseek_v3", method, layout) for method, layout in (("full", Layout(tp=2)), ("full", EP2), ("lora", EP2))),
    pytest.param("deepseek_v3", "lora", Layout(tp=2), marks=CI),
]


@pytest.mark.parametrize(("model", "method", "layout"), HELD)
def test_ranks_hold_of_experts_what_is_forecast(model, method, layout, make_job, tmp_path) -> None:
    must_be_forecast(make_job(model, method=method, train={"max_steps": 1}), spread(layout, micros=2), tmp_path)


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
    resumed = move(job, tmp_path / "moved", known[before], known[after], at=5)[0]
    assert relative(single(job).series("loss"), resumed.series("loss")) <= 1e-6


@pytest.mark.parametrize("cell", ["fsdp(2) x ep(2)", "zero2(2)"])
@pytest.mark.parametrize("model", ["balanced mixtral", "olmoe"])
def test_experts_are_saved_as_from_pretrained_reads_them(model, cell, make_job, tmp_path) -> None:
    must_load(finish(make_job(model, train={"max_steps": 3}), tmp_path, (CELLS | DEALT)[cell], shard_bytes=60_000))


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
    assert loss_of(adapted(models[model], final), final) == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["fsdp(2)", "ddp(2)", "1f1b(2), recompute"])
def test_qlora_that_leaves_experts_wide_trains_as_one_process_does(cell, must_train_alike) -> None:
    train = {"quantize_experts": False, "max_steps": STEPS}
    must_train_alike(CELLS[cell], "wide qwen3_moe", method="qlora", train=train)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(dp_shard=2), Layout(pp=2)])
def test_correction_biases_are_kept_and_saved_in_their_own_type(layout, make_job, models, tmp_path) -> None:
    job = make_job("deepseek_v3", train={"max_steps": 2, "save_dtype": "bfloat16"})
    final, _, _ = finish(job, tmp_path, spread(layout, micros=2))
    before, after = (AutoModelForCausalLM.from_pretrained(f).model.layers for f in (models["deepseek_v3"], final))
    for index in range(1, 4):
        bias = after[index].mlp.gate.e_score_correction_bias
        assert bias.dtype == torch.float32 and bool(bias.any())
        assert torch.equal(bias, before[index].mlp.gate.e_score_correction_bias)


def test_a_router_draws_no_noise_in_training_and_that_is_said(tmp_path) -> None:
    tiny_config("phimoe", input_jitter_noise=0.1).save_pretrained(tmp_path)
    model = build_on_meta(read_config(tmp_path), attn_implementation="eager").to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    route(model, compute=torch.float32, balance=None)
    owner = next(mixtures(model.train())).owner
    hidden = torch.randn(2, 5, 64)
    assert model.training and torch.equal(owner(hidden.clone()), owner(hidden.clone()))
    said = "phimoe routes without noise (router_jitter_noise 0.01, input_jitter_noise 0.1), as in evaluation"
    assert (noise_left_out(model.config) or "").startswith(said)


def _of_one_step(family: str, *, is_ours: bool) -> list[float]:
    """Loss and gradient norm, with the loss of routers, by transformers or by ours."""
    config = tiny_config(family, output_router_logits=True, router_aux_loss_coef=0.3)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").train()
    correct_routers(model)
    rows = torch.arange(3, 39).view(3, 12)
    model = shardwise.parallelize(model, "single") if is_ours else model
    loss = (model.step if is_ours else lambda one: model(**one).loss)({"input_ids": rows, "labels": rows})
    if not is_ours:
        loss.backward()
    return [loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()]


@pytest.mark.parametrize("family", installed(["minimax_m2", "deepseek_v4", "ernie4_5_moe"]))
def test_the_loss_of_routers_is_that_of_transformers_whatever_corrects_a_choice(family) -> None:
    """Of deepseek_v4 some routers look tokens up; of ernie4_5_moe a bias is a frozen parameter."""
    (theirs,), (ours,) = (run_world(1, partial(_of_one_step, family, is_ours=is_ours)) for is_ours in (False, True))
    assert relative(theirs, ours) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "asked"), [("jetmoe", "output_router_logits: true"), ("bamba", "z_loss_coefficient")]
)
def test_a_part_of_the_loss_that_is_not_computed_is_refused(family, asked, tmp_path) -> None:
    tiny_config(family, **{asked.partition(":")[0]: "true" in asked or 1.0}).save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)).untrained.startswith(f"{family} with {asked} adds to its loss what this version")


def test_routers_of_a_language_model_beside_images_are_balanced_too() -> None:
    config = text_config(tiny_config("qwen3_vl_moe"))
    config.output_router_logits = True
    assert Balance.of(config, device=torch.device("cpu")) is not None


def test_experts_that_are_handed_no_routes_are_not_dealt(tmp_path) -> None:
    tiny_config("jetmoe").save_pretrained(tmp_path)
    said = said_by(UnsupportedError, refuse_to_deal, build_on_meta(read_config(tmp_path), attn_implementation="eager"))
    assert said.startswith("JetMoeForCausalLM does not hand what its routers chose to stacked experts")
