"""Mixtures of experts: what test_experts.py and test_families.py leave out."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from shardwise.errors import UnsupportedError
from shardwise.models.load import build_on_meta, read_config
from shardwise.models.routing import mixtures, noise_left_out, refuse_to_deal, route
from shardwise.spec.layout.axes import Layout
from tests.dist.cells import spread
from tests.dist.test_final import finish
from tests.dist.test_memory import must_be_forecast
from tests.dist.tiny import tiny_config
from tests.dist.worlds import said_by


@pytest.mark.parametrize("layout", [Layout(dp_shard=2, tp=2), Layout(dp_replicate=2, dp_shard=2, ep=2)])
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model", ["deepseek_v3", "balanced mixtral"])
def test_products_train_a_mixture_as_one_process_does(model, method, layout, must_train_alike) -> None:
    """Also routers balanced under tp, and adapters on dealt experts."""
    must_train_alike(spread(layout, micros=2), model, method=method, train={"max_steps": 6})


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
