"""`rope_scaling` trains as transformers does with that configuration; the result says it."""

import re
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.errors import UnsupportedError
from shardwise.models.load import read_config
from shardwise.spec.job.rope import RopeScaling
from shardwise.spec.layout.axes import Layout
from shardwise.train import merging
from tests.dist.cells import OPTIMIZERS, spread
from tests.dist.compare import TOLERANCE, apart
from tests.dist.worlds import run_world, said_by

SCALINGS: dict[str, dict[str, Any]] = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
    "linear": {"type": "linear", "factor": 2.0, "rope_theta": 5e4},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
    | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
}
LAYOUTS = {"cp": Layout(cp=2), "tp": Layout(tp=2), "pp": Layout(pp=2), "fsdp x cp": Layout(dp_shard=2, cp=2)}


@pytest.mark.parametrize("kind", SCALINGS)
def test_a_run_computes_as_transformers_does_with_the_same_configuration(kind, trained, models) -> None:
    """Logits of `final/` are those of plain transformers with rope_parameters set by hand."""
    run = trained("untied", method="full", rope_scaling=SCALINGS[kind], train={"max_steps": 1, "learning_rate": 1e-9})
    own = AutoConfig.from_pretrained(models["untied"]).rope_parameters
    stated = {key: value for key, value in SCALINGS[kind].items() if key != "type"}
    by_hand = {"rope_theta": own["rope_theta"], **stated, "rope_type": kind}
    plain: Any = AutoModelForCausalLM.from_pretrained(models["untied"], rope_parameters=by_hand)
    untouched: Any = AutoModelForCausalLM.from_pretrained(models["untied"])
    loaded: Any = AutoModelForCausalLM.from_pretrained(run.final)
    assert {**loaded.config.rope_parameters} == {**plain.config.rope_parameters}
    ids = torch.arange(3, 90).unsqueeze(0)
    with torch.no_grad():
        expected, found, other = (model(ids).logits for model in (plain, loaded, untouched))
    assert torch.allclose(expected, found, rtol=1e-5, atol=1e-5)
    if kind != "dynamic":  # which is the default up to the model's positions
        assert not torch.allclose(other, found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("method", ["full", "lora"])
def test_layouts_train_with_it_as_one_process_does(method, layout, single, make_job, must_train_alike) -> None:
    train = {**OPTIMIZERS["sgd"], "max_steps": 6, "warmup_steps": 1}
    rope, chosen = SCALINGS["yarn"] | {"attention_factor": 4.0}, spread(LAYOUTS[layout], micros=2)
    expected, _ = must_train_alike(chosen, method=method, rope_scaling=rope, train=train)
    other = single(make_job(method=method, train=train))
    assert max(apart(other.weights[name], weight) for name, weight in expected.weights.items()) > 100 * TOLERANCE


def test_an_adapter_is_merged_with_it_and_its_card_says_how_it_is_used(trained, models) -> None:
    run = trained("untied", rope_scaling=SCALINGS["yarn"])
    run_world(1, merging.merge, str(run.root), str(run.merged), None, False)
    merged: Any = AutoModelForCausalLM.from_pretrained(run.merged)
    assert merged.config.rope_parameters["factor"] == 4.0
    card = (run.final / "README.md").read_text()
    assert "`rope_scaling`, yarn" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    assert code is not None
    name = re.search(r'AutoConfig.from_pretrained\("(.*?)"\)', code[1])
    assert name is not None
    asked = code[1].replace(f'"{name[1]}"', repr(str(models["untied"])))
    asked = re.sub(r'"run"(?=\))', repr(str(run.final)), asked)
    made: dict[str, Any] = {}
    exec(asked, made)
    ids = torch.arange(3, 90).unsqueeze(0)
    with torch.no_grad():
        assert torch.allclose(made["model"](ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)


def test_what_does_not_rotate_or_rotates_in_several_ways_is_refused(models) -> None:
    rope = RopeScaling(rope_type="linear", factor=2.0)
    assert "has no rotary positions to stretch" in said_by(UnsupportedError, read_config, models["gpt2"], rope=rope)
    said = said_by(UnsupportedError, read_config, models["gemma3"], rope=rope)
    assert "rotate in several ways (full_attention, sliding_attention)" in said
