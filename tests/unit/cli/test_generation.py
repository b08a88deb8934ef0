"""`plan --task generate`: weights, and keys and values, counted beside what transformers allocates."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise import api
from shardwise.catalog.models import read_model
from shardwise.cli.main import main
from shardwise.spec.plan.generation import cache_elements


def _plan(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--task", "generate", *options])
    code = ended.value.code
    said = capsys.readouterr()
    return int(code or 0), said.out + said.err


SIZES = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
WINDOW = 8


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_weights_and_keys_and_values_are_those_that_transformers_holds(model_type, tmp_path) -> None:
    window = WINDOW if model_type == "mistral" else None
    config = AutoConfig.for_model(model_type, **SIZES, vocab_size=64, intermediate_size=48, sliding_window=window)
    config.architectures = ["AnyForCausalLM"]
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config)
    cache = model(torch.ones(2, 40, dtype=torch.long), use_cache=True).past_key_values
    held = sum(t.numel() for layer in cache.layers for t in (layer.keys, layer.values))
    counted = 2 * cache_elements(read_model(str(tmp_path)), 40)
    # A layer with a window leaves out the oldest token of it: the next one takes its place.
    assert held == (counted if window is None else counted * (WINDOW - 1) / WINDOW)
    found = api.generation(overrides=[f"model={tmp_path}", "method=full", "hardware=cpu:1"])
    assert found.weight_bytes == sum(p.nbytes for p in model.parameters())


def test_what_fits_is_said_with_a_table(capsys) -> None:
    code, said = _plan(
        capsys, "--model", "llama-3.1-8b", "--method", "full", "--hardware", "1x L4", "--set", "data.max_length=8192"
    )
    assert code == 1
    assert "does not fit on 1x L4" in said and "8 sequences of 8,192 tokens take 23.0 GiB of 20.6 GiB" in said
    assert "weights          15.0 GiB in bfloat16" in said and "128 KiB a token" in said
    assert "16,384   17.0  23.0!  31.0!" in said
    code, said = _plan(
        capsys, "--model", "llama-3.1-70b", "--method", "qlora", "--hardware", "1x H100-SXM", "--global-batch-size", "1"
    )
    assert code == 0
    assert "one sequence of 1,024 tokens takes " in said and "in 4 bits, with adapters" in said


def test_open_hardware_is_answered_with_the_cheapest_that_holds_it(capsys) -> None:
    code, said = _plan(capsys, "--model", "llama-3.1-70b", "--method", "full", "--hardware", "any", "--json")
    found = json.loads(said)
    assert code == 0 and found["task"] == "generate"
    assert found["capacity_bytes"] > found["asked"]["total_bytes"] > found["weight_bytes"] == 2 * 70_553_706_496
    here = api.generation(overrides=["model=llama-3.1-70b", "hardware=8x H100-SXM"])
    assert found["usd_per_hour"] <= (here.usd_per_hour or 0)
    small = api.generation(overrides=["model=llama-3.1-70b", "method=full", "hardware=1x L4, 2x L4"])
    assert (small.hardware, small.asked.fits) == (None, None)


def test_what_generating_has_not_is_refused(capsys) -> None:
    assert _plan(capsys, "--model", "llama-3.1-8b", "--timeline") == (
        2,
        "error: --task generate has no --solve, --rehearse, --calibrated, --timeline, --html or --output; "
        "leave them out\n",
    )
    with pytest.raises(SystemExit):
        main(["plan", "--model", "llama-3.1-8b", "--task", "serve"])
    assert "--task serve: there is no such task; write --task train or --task generate" in capsys.readouterr().err
