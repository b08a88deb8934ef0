"""`plan --task generate`: weights, keys and values, beside what transformers allocates."""

import json
from collections.abc import Callable

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise import api
from shardwise.catalog.models import read_model
from shardwise.spec.plan.generation import cache_elements
from tests.unit.cli.conftest import Shardwise

SIZES = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
WINDOW = 8


@pytest.fixture
def asked(shardwise: Shardwise) -> Callable[..., tuple[int, str]]:
    def run(*options: str) -> tuple[int, str]:
        said = shardwise("plan", "--task", "generate", *options)
        return said.code, said.out + said.err

    return run


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


#: Hybrids: what transformers calls them, and what their configurations have beside `SIZES`.
RECURRENT = {
    "qwen3_5_text": {"layer_types": ["linear_attention"] * 2 + ["full_attention"]},
    "mamba2": {"num_heads": 2, "n_groups": 1, "state_size": 8},
}


@pytest.mark.parametrize(("model_type", "more"), RECURRENT.items())
def test_blocks_without_attention_keep_no_keys_and_values(model_type, more, tmp_path, asked) -> None:
    config = AutoConfig.for_model(model_type, **SIZES, vocab_size=64, head_dim=32, **more)
    model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(tmp_path)
    cache = model(torch.ones(2, 40, dtype=torch.long), use_cache=True)
    layers = [layer for layer in (cache.get("past_key_values") or cache.cache_params).layers if hasattr(layer, "keys")]
    code, said = asked("--model", str(tmp_path), "--hardware", "cpu:1", "--max-length", "40", "--json")
    found = json.loads(said)
    held = sum(t.nbytes for layer in layers for t in (layer.keys, layer.values))
    assert (code, 4 * held, found["blocks_without"]) == (0, found["asked"]["cache_bytes"], 3 - len(layers))
    said = asked("--model", str(tmp_path), "--hardware", "cpu:1")[1]
    assert f"{3 - len(layers)} blocks keep a state of one size instead, which is not counted" in said


def test_what_fits_is_said_with_a_table(asked) -> None:
    model = ("--model", "llama-3.1-8b", "--method", "full")
    code, said = asked(*model, "--hardware", "1x L4", "--set", "data.max_length=8192")
    assert code == 1
    assert "does not fit on 1x L4" in said and "8 sequences of 8,192 tokens take 23.0 GiB of 20.4 GiB" in said
    assert "weights          15.0 GiB in bfloat16" in said and "128 KiB a token" in said
    assert "16,384 17.0 23.0! 31.0!" in " ".join(said.split())
    model = ("--model", "llama-3.1-70b", "--method", "qlora")
    code, said = asked(*model, "--hardware", "1x H100-SXM", "--global-batch-size", "1")
    assert code == 0
    assert "one sequence of 1,024 tokens takes " in said and "in 4 bits, with adapters" in said


def test_open_hardware_is_answered_with_the_cheapest_that_holds_it(asked) -> None:
    code, said = asked("--model", "llama-3.1-70b", "--method", "full", "--hardware", "any", "--json")
    found = json.loads(said)
    assert code == 0 and found["task"] == "generate"
    assert found["capacity_bytes"] > found["asked"]["total_bytes"] > found["weight_bytes"] == 2 * 70_553_706_496
    here = api.generation(overrides=["model=llama-3.1-70b", "hardware=8x H100-SXM"])
    assert found["usd_per_hour"] <= (here.usd_per_hour or 0)
    small = api.generation(overrides=["model=llama-3.1-70b", "method=full", "hardware=1x L4, 2x L4"])
    assert (small.hardware, small.asked.fits) == (None, None)


def test_what_generating_reads_is_taken_and_what_it_has_not_is_refused(asked, shardwise) -> None:
    others = "--solve, --rehearse, --calibrated, --what-if, --for, --timeline, --html or --output"
    has_not = f"--task generate has no {others}"
    assert asked("--model", "llama-3.1-8b", "--timeline") == (2, f"error: {has_not}; leave them out\n")
    refused = shardwise("plan", "--model", "llama-3.1-8b", "--task", "serve").err
    assert "--task serve: there is no such task; write --task train or --task generate" in refused
    keys = ["model=llama-3.1-8b", "hardware=1x L4", "method=lora"]
    small, large = (api.generation(overrides=[*keys, f"lora.r={rank}"]) for rank in (8, 256))
    assert small.weight_bytes < large.weight_bytes


def test_a_length_beyond_the_positions_is_refused_and_none_is_counted(asked, tmp_path) -> None:
    model = ("--model", "llama-3.1-8b", "--hardware", "1x H100-SXM")
    code, said = asked(*model, "--max-length", "131073")
    assert code == 2
    assert said == (
        "error: --max-length 131073: data.max_length is 131,073, of prompt and answer together, and the model reads "
        "131,072; ask for no more\n"
    )
    code, said = asked(*model, "--max-length", "131072", "--json")
    assert max(one["length"] for one in json.loads(said)["table"]) == 131072
    assert api.generation(overrides=["model=tinyllama-1.1b", "hardware=1x L4"]).table[-1].length == 2048
    config = AutoConfig.for_model("llama", **SIZES, vocab_size=64, max_position_embeddings=128)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    found = api.generation(overrides=[f"model={tmp_path}", "hardware=cpu:1"])
    assert (found.asked.length, {one.length for one in found.table}) == (128, {128})


@pytest.mark.parametrize(
    "key", ["train.precision=fp32", "train.save_dtype=float32", "data.packing=true", "lora.lora_alpha=8", "layout=tp"]
)
def test_a_key_that_generating_does_not_read_is_refused(key, asked) -> None:
    code, said = asked("--model", "llama-3.1-8b", "--method", "lora", "--set", key)
    assert code == 2
    assert said.startswith(f"error: --set {key}: --task generate does not read this key; it reads model, method, ")
    assert said.endswith("lora.modules_to_save, and --dtype\n")


def test_the_type_is_the_one_asked_for_or_the_models_after_training(asked, shardwise, tmp_path) -> None:
    model = ("--model", "llama-3.1-8b", "--method", "full", "--hardware", "1x H100-SXM")
    code, said = asked(*model, "--dtype", "float32")
    assert code == 0
    assert "weights          29.9 GiB in float32" in said and "256 KiB a token, in float32" in said
    saved = tmp_path / "job.yaml"
    saved.write_text("model: llama-3.1-8b\ntrain: {save_dtype: float16}\nhardware: 1x L4\n")
    found = api.generation(saved)
    assert (found.type_name, found.weight_bytes) == ("float16", 2 * 8_030_261_248)
    refused = "error: --dtype is 'int8'; expected one of float32, bfloat16, float16\n"
    assert asked(*model, "--dtype", "int8") == (2, refused)
    refused = shardwise("plan", *model, "--dtype", "float32").err
    assert "--dtype is of --task generate; in training types are train.precision" in refused


def test_latent_attention_is_counted_as_transformers_keeps_it_and_says_so(asked, tmp_path) -> None:
    _, said = asked("--model", "deepseek-v2-lite", "--method", "full", "--hardware", "1x H100-SXM")
    assert "keys and values  30.4 KiB a token, in bfloat16" in said
    assert "of latents, as transformers, vLLM and SGLang keep them; 270 KiB in programs that keep whole heads" in said
    ranks = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    sides = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 32}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    widths = {"intermediate_size": 48, "moe_intermediate_size": 16, "vocab_size": 64}
    config = AutoConfig.for_model("deepseek_v2", **ranks, **sides, **experts, **widths)
    config.architectures = ["DeepseekV2ForCausalLM"]
    config.save_pretrained(tmp_path)
    cache = AutoModelForCausalLM.from_config(config)(torch.ones(1, 6, dtype=torch.long), use_cache=True)
    held = sum(t.nbytes for layer in cache.past_key_values.layers for t in (layer.keys, layer.values))
    found = api.generation(overrides=[f"model={tmp_path}", "hardware=cpu:1", "data.max_length=6"])
    assert found.asked.cache_bytes == held * found.asked.sequences
    assert found.whole_heads_bytes == 2 * 4 * (8 + 4 + 8) * 4
    assert api.generation(overrides=["model=llama-3.1-8b", "hardware=1x L4"]).whole_heads_bytes is None
