"""Adapters beside and on stacked experts: what PEFT hangs there, refuses, and makes anew."""

import re

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import UnsupportedError
from shardwise.plan.run_forecast import memory_of
from tests.unit.catalog.small import their_config
from tests.unit.plan.asking import find_model, job, memory, plan, shape, take_inventory
from tests.unit.plan.memory.test_against_torch import EXPERTS, RANK, SPARSE, Trainer, asked, config_of

TARGETS = [["all-linear"], ["q_proj", "o_proj"], ["down_proj"], ["gate_proj", "up_proj", "o_proj"]]
TARGETS += [["mlp.experts.gate_proj", "up_proj"], ["w1", "w3", "w2"], ["w2"], ["gate", "o_proj"]]
TARGETS += [["shared_expert_gate", "o_proj"]]
WIDE = {"hidden_size": 256, "head_dim": 64, "num_experts": 8, "num_local_experts": 8, "moe_intermediate_size": 512}


def theirs(config, named):
    """Elements that PEFT trains, or None where it refuses or passes over some targets."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(their_config({**EXPERTS, **config}))
    modules = "all-linear" if named == ["all-linear"] else named
    # PEFT adds to one result, and these routers give several.
    left_out = ["router"] if modules == "all-linear" and config["model_type"] in ("phimoe", "llama4_text") else None
    asked = peft.LoraConfig(r=RANK, target_modules=modules, exclude_modules=left_out)
    try:
        adapted = peft.get_peft_model(model, asked, low_cpu_mem_usage=True)
    except ValueError:
        return None
    return sum(p.numel() for p in adapted.parameters() if p.requires_grad)


@pytest.mark.filterwarnings("ignore")  # PEFT warns of patterns that it has made itself
@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize("named", TARGETS, ids="-".join)
@pytest.mark.parametrize("step", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_adapters_beside_experts_are_those_that_peft_hangs_there(kind, named, step):
    """PEFT passes over a name without meaning if another has one; here that is refused."""
    config = config_of(kind, decoder_sparse_step=step)
    measured = theirs(config, named)
    lora = {"r": RANK, "target_modules": "all-linear" if named == ["all-linear"] else named}
    try:
        forecast = take_inventory(job(method="lora", lora=lora), shape(config)).trained_elements
    except UnsupportedError as refused:
        assert " this version adapts " in str(refused) or measured is None
        assert named not in (["all-linear"], ["q_proj", "o_proj"]) or kind.startswith("deepseek")
    else:
        assert forecast == measured


def test_the_families_whose_experts_are_reached_are_those_of_peft():
    reached = ["mixtral", "olmoe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe"]
    assert [kind for kind in SPARSE if FAMILIES[kind].bare_experts] == reached


def targets(*names):
    return {"target_modules": [*names]}


@pytest.mark.parametrize(
    ("kind", "lora", "says"),
    [
        ("deepseek-v3", targets("q_proj", "o_proj"), "names q_proj; of deepseek_v3 this version adapts q_a_proj, "),
        ("deepseek-v3", targets("experts.typo"), "names experts.typo; of deepseek_v3 this version adapts q_a_proj, "),
        ("deepseek-v3", targets("o_proj", "gate_proj"), "names gate_proj without up_proj, and in the experts"),
        ("mixtral-8x7b", targets("w3"), "names w3 without w1, and in the experts of mixtral these are one"),
        ("mixtral-8x7b", {"lora_dropout": 0.1}, "is 'all-linear', which reaches the stacked experts of mixtral, where"),
        ("mixtral-8x7b", {"use_dora": True}, "knows no lora.use_dora: leave that out, or write lora.target_modules: ["),
    ],
)
def test_what_peft_does_not_do_with_experts_is_refused_in_a_sentence(kind, lora, says):
    with pytest.raises(UnsupportedError, match=re.escape(says)):
        take_inventory(job(method="lora", lora=lora), find_model(kind, offline=True))


@pytest.mark.filterwarnings("ignore")  # the profiler warns of blocks older than itself
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
@pytest.mark.parametrize("recompute", ["none", pytest.param("selective", marks=pytest.mark.slow), "full"])
def test_weights_made_anew_are_in_the_peak_of_a_step(kind, precision, recompute):
    config = config_of(kind, **WIDE, intermediate_size=512, decoder_sparse_step=1)
    measured = Trainer(config, precision=precision, method="lora", recompute=recompute, length=32).peak()
    keys = {"precision": precision, "gradient_checkpointing": recompute, "micro_batch_size": 2}
    forecast = memory(asked("lora", data={"max_length": 32}), shape(config), hardware="cpu:1", **keys).peak_bytes
    assert forecast == pytest.approx(measured, rel=0.05)
    narrow = job(method="lora", lora={"r": RANK, "target_modules": ["q_proj"]}, data={"max_length": 32})
    assert forecast - memory(narrow, shape(config), hardware="cpu:1", **keys).peak_bytes > 0.1 * measured


def test_a_plan_counts_what_is_left_of_dealt_experts():
    made = plan("mixtral-8x7b", "8x H100-SXM", "method: full\ndata: {max_length: 1024}\nlayout: {dp_shard: 8, ep: 8}")
    assert made.best.memory == memory_of(made, made.best.execution)
