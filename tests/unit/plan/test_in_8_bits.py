"""What a plan says of 8-bit AdamW: how much of its moments is in 8 bits, and what all of them take."""

import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise import api
from shardwise.spec.job.keys import TrainSpec
from shardwise.train.optim import build_optimizer


def _said(*overrides: str) -> str:
    made = api.plan(overrides=["train.optimizer=adamw_8bit", *overrides])
    assert made.best is not None
    return next(reason for reason in made.best.reasons if reason.startswith("adamw_8bit"))


@pytest.mark.parametrize(
    ("model", "precision", "share", "takes"),
    [
        ("qwen2.5-0.5b", "mixed", "21.2", "3.1 GiB of states in all, where adamw has 3.7 GiB"),
        ("qwen2.5-0.5b", "bf16", "21.2", "3.1 GiB of states in all, where adamw has 1.8 GiB"),
        ("llama-3.2-1b", "mixed", "100", "2.3 GiB of states in all, where adamw has 9.2 GiB"),
    ],
)
def test_a_plan_says_how_much_is_in_8_bits_and_what_it_saves(model, precision, share, takes) -> None:
    said = _said(f"model={model}", "method=full", "hardware=1x H100-SXM", f"train.precision={precision}")
    rest = "norms, biases and rows that are no multiple of 256 stay in 32 bits"
    assert said == f"adamw_8bit keeps {share} % of the moments in 8 bits, {takes}; {rest}"


def test_another_optimizer_says_nothing_of_it() -> None:
    made = api.plan(overrides=["model=llama-3.2-1b", "hardware=1x H100-SXM"])
    assert made.best is not None
    assert not any("8 bits" in reason for reason in made.best.reasons)


@pytest.mark.parametrize("sizes", [(192, 512), (256, 512), (192, 320)], ids=str)
def test_the_share_is_that_of_the_trainers_own_states(sizes, tmp_path) -> None:
    sides = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    config = AutoConfig.for_model("qwen2", hidden_size=sizes[0], intermediate_size=sizes[1], **sides)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    optimizer = build_optimizer(model.parameters(), train=TrainSpec(), name="adamw_8bit")
    model(torch.ones(1, 8, dtype=torch.long), labels=torch.ones(1, 8, dtype=torch.long)).loss.backward()
    optimizer.step()
    moments = [state["state1"] for state in optimizer.state.values()]
    short = sum(one.numel() for one in moments if one.dtype == torch.uint8)
    share = re.match(r"adamw_8bit keeps ([\d.]+) %", _said(f"model={tmp_path}", "method=full", "hardware=cpu:1"))
    assert share is not None
    assert float(share[1]) == pytest.approx(100 * short / sum(one.numel() for one in moments), rel=5e-3)
