"""Mixtures of experts of every kind of routing train as plain transformers does, and as one process under every
layout."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from shardwise.errors import UnsupportedError
from shardwise.models.load import build_on_meta, read_config
from shardwise.models.routing import mixtures, noise_left_out, refuse_to_deal, route
from shardwise.spec.layout.axes import Layout
from tests.dist.cells import OPTIMIZERS, must_equal, spread, train_cell
from tests.dist.every_family import make_rows, put
from tests.dist.test_final import finish
from tests.dist.test_memory import must_be_forecast
from tests.dist.tiny import tiny_config
from tests.dist.worlds import installed, said_by
from tests.marks import rare_but_first

WAYS = ("single", "ddp", "zero1", "zero2", "fsdp", "mp", "pp", "tp", "ep")

#: Families that differ in how they route, in what stands beside the experts and in what a plan slices, and under which
#: ways they are refused.
FAMILIES: dict[str, tuple[str, ...]] = {
    "gpt_oss": (),  # sinks, windows, biases of routers and experts; no plan of slices but of experts
    "phimoe": (),  # would draw noise as it routes
    "qwen2_moe": (),  # a shared expert with a gate
    "granitemoe": (),
    "glm4_moe": (),  # sigmoid routing, correction biases, dense blocks
    "deepseek_v2": (),  # latent attention
    "afmoe": (),  # a correction bias that is a parameter
    "ernie4_5_moe": (),  # one inside the router
    "minimax_m2": (),  # one beside it, which the router is handed
    "axk1": (),  # a norm behind shared and routed experts
    "llama4_text": ("ep",),  # every token through every expert, which only numbers show
    "deepseek_v3": (),  # groups of experts
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what PEFT warns of as plain transformers is adapted
@pytest.mark.parametrize("family", rare_but_first(installed(tuple(FAMILIES))))
def test_a_mixture_trains_as_transformers_does_and_alike_under_every_layout(family, tmp_path) -> None:
    found = put(family, tmp_path, make_rows(tmp_path / "rows.jsonl"), ways=WAYS)
    assert found["planned"] == found["count"]
    refused = {cell.partition("/")[2] for cell, said in found["cells"].items() if said.startswith("refused")}
    assert {cell: said for cell, said in found["cells"].items() if not said.startswith(("refused", "equal"))} == {}
    assert refused == {*FAMILIES[family]}


@pytest.mark.parametrize("layout", [Layout(dp_shard=2, tp=2), Layout(dp_replicate=2, dp_shard=2, ep=2)])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", ["deepseek_v3", "balanced mixtral"])
def test_products_train_a_mixture_as_one_process_does(model, method, layout, single, make_job, tmp_path) -> None:
    """Routers that are balanced over the global batch under tp too, and adapters on dealt experts."""
    job = make_job(model, method=method, train={**OPTIMIZERS["sgd"], "max_steps": 6})
    must_equal(single(job), train_cell(job, tmp_path, spread(layout, micros=2, optimizer="sgd")))


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


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(dp_shard=2, ep=2)])
@pytest.mark.parametrize("model", ["deepseek_v3", "qwen2_moe"])
def test_ranks_hold_of_a_mixture_what_is_planned(model, layout, method, make_job, tmp_path) -> None:
    must_be_forecast(make_job(model, method=method, train={"max_steps": 1}), spread(layout), tmp_path)


def test_experts_that_are_handed_no_routes_are_not_dealt(tmp_path) -> None:
    tiny_config("jetmoe").save_pretrained(tmp_path)
    said = said_by(UnsupportedError, refuse_to_deal, build_on_meta(read_config(tmp_path), attn_implementation="eager"))
    assert said.startswith("JetMoeForCausalLM does not hand what its routers chose to stacked experts")
