"""`--solve`: the extreme value with which a job fits, and what it says of the next one."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.catalog.offers import every_size
from shardwise.errors import UnsupportedError
from shardwise.plan.solve import solve
from shardwise.plan.unknowns import find_unknown
from shardwise.spec.cluster import Cluster
from shardwise.spec.plan.file import plan_from_json
from shardwise.spec.plan.forecast import Plan
from tests.marks import CI
from tests.unit.plan.asking import TINY, find_model, job, make_plan, parse_hardware, plan, shape

#: Logits of 64 such sequences of 43 tokens are one chunk, and of 44 two.
WORDY = {**TINY, "vocab_size": 48_000, "max_position_embeddings": 24}
LORA = {"method": "lora", "lora": {"r": 8}}
SOLVED = {"max_length": {}, "micro_batch_size": {}, "lora.r": LORA, "gpus": {"layout": "hsdp"}}


def solved(key: str, *, hardware: str | Cluster = "1x H100-SXM", model: str | None = None, **keys) -> Plan:
    cluster = parse_hardware(hardware) if isinstance(hardware, str) else hardware
    found = find_model(model, offline=True) if model else shape(WORDY)
    return solve(find_unknown(key, job=job(**keys), model=found, cluster=cluster))


@settings(max_examples=40, deadline=None)
@example(key="max_length", model="llama-3.1-8b", method="full", hardware="1x RTX-4090", offload="auto", goal="fastest")
@example(key="lora.r", model="llama-3.1-70b", method="lora", hardware="1x RTX-4090", offload="auto", goal="fastest")
@given(
    key=st.sampled_from(["max_length", "micro_batch_size", "lora.r", "gpus"]),
    model=st.sampled_from(["qwen2.5-0.5b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-32b", "llama-3.1-70b"]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    hardware=st.sampled_from(["1x RTX-3060", "1x RTX-4090", "2x L4", "1x A100-80GB", "2x H100-SXM"]),
    offload=st.sampled_from(["auto", "none", "optimizer", "parameters", "all"]),
    goal=st.sampled_from(["fastest", "cheapest", "fewest-gpus"]),
)
def test_the_plan_of_a_value_that_is_solved_for_fits(key, model, method, hardware, offload, goal):
    """Wherever it needs so much of the host's memory that an offload must be stated, too."""
    if key == "lora.r" and method == "full":
        method = "lora"
    keys = {"method": method, "goal": goal, "train": {"offload": offload}}
    try:
        found = solved(key, model=model, hardware=hardware, **keys)
    except UnsupportedError:
        return  # what this version does not train is refused by the plan as well
    assert (found.best is None) == (found.solved.value is None)


def test_what_the_next_value_lacks_is_said_and_which_offload_would_hold_it() -> None:
    found = solved("lora.r", model="qwen2.5-14b", hardware="1x RTX-4090", method="lora").solved
    assert "into the host's memory" in found.next.reason
    stated = {"method": "lora", "train": {"offload": "parameters"}}
    larger = solved("lora.r", model="qwen2.5-14b", hardware="1x RTX-4090", **stated).solved
    assert (larger.value or 0) > found.value
    found = solved("max_length", model="llama-3.1-8b", hardware="2x L4", method="lora").solved
    assert found.next.reason.endswith("; train.offload: optimizer would hold it")
    stated = f"method: lora\ndata: {{max_length: {found.next.value}}}\ntrain: {{offload: optimizer}}\n"
    assert plan("llama-3.1-8b", "2x L4", stated).best is not None
    without = {"method": "lora", "train": {"offload": "none"}}
    same = solved("max_length", model="llama-3.1-8b", hardware="2x L4", **without).solved
    assert (same.value, "would hold" in same.next.reason) == (found.value, False)


def test_the_extreme_value_is_found_with_what_bounds_it() -> None:
    found = solved("r", **LORA).solved
    assert (found.value, found.limit) == (64, "k_proj is 64 wide: a larger rank adds nothing to it")
    found = solved("max_length", model="tinyllama-1.1b", hardware="1x H200")
    assert (found.solved.value, found.solved.next) == (2048, None)
    assert found.solved.limit == "the model was made for 2048 positions"
    assert found.job["data"]["max_length"] == 2048
    found = solved("micro_batch_size", hardware="4x H100-SXM", layout="ddp", train={"global_batch_size": 10})
    assert (found.solved.value, found.solved.next.value) == (3, 4)
    assert found.solved.next.reason == "no layout has so many sequences for each of its ranks"
    found = solved("max_length", model="llama-3-70b", hardware="1x L4", train={"offload": "none"})
    assert (found.solved.value, found.best, found.job["data"]["max_length"]) == (None, None, 1)
    assert "needs" in found.solved.next.reason


@pytest.mark.parametrize(
    ("model", "hardware", "keys", "fewest"),
    [
        ("llama-3.2-3b", "8x RTX-4070", {"train": {"offload": "none"}}, 6),
        ("mixtral-8x7b", "8x L40S", {"method": "lora", "train": {"offload": "none"}}, 3),
        ("qwen2.5-7b", "3 x 2x RTX-A5000", {"train": {"offload": "none"}}, None),
        pytest.param("llama-3.1-70b", "2x L40S", {"train": {"offload": "none"}}, None, marks=CI),
    ],
)
def test_every_number_of_gpus_is_tried(model, hardware, keys, fewest):
    found = solved("gpus", hardware=hardware, model=model, **keys).solved
    least = found.value
    assert fewest in (None, least)
    sizes = [size for size in every_size(parse_hardware(hardware), most=1024) if size.num_gpus <= least]
    assert found.next.value == sizes[-2].num_gpus
    for size in sizes:
        whole = make_plan(job(**keys), model=find_model(model, offline=True), cluster=size)
        assert (whole.best is not None) == (size.num_gpus == least), size.name


def test_the_fewest_gpus_are_the_first_that_fit_on_as_many_nodes_as_it_takes() -> None:
    found = solved("gpus", hardware="H100-SXM", model="llama-3.1-8b")
    assert (found.solved.value, found.solved.written) == (2, "2x H100-SXM")
    assert (found.solved.next.value, found.hardware["name"]) == (1, "2x H100-SXM")
    assert "GiB of 79.2 GiB" in found.solved.next.reason
    found = solved("gpus", hardware="1x H100-SXM", model="llama-3-70b")
    assert (found.solved.value, found.solved.written) == (16, "2 x 8x H100-SXM")
    assert found.best.execution.layout.world_size == 16


REFUSED = [
    ("max_lenght", {}, "did you mean max_length"),
    ("colour", {}, "known are max_length, micro_batch_size, lora.r, gpus"),
    ("lora.r", {}, "--solve lora.r: method is full, which has no adapters"),
    ("gpus", {"hardware": "cpu:2"}, "CPU processes share one memory"),
]


@pytest.mark.parametrize(("key", "keys", "sentence"), REFUSED, ids=[sentence for *_, sentence in REFUSED])
def test_a_question_without_an_answer_is_refused_with_a_sentence(key: str, keys: dict[str, str], sentence: str):
    with pytest.raises(UnsupportedError, match=sentence):
        solved(key, **keys)


@pytest.mark.parametrize(("key", "keys"), SOLVED.items())
def test_what_was_solved_survives_json(key: str, keys: dict[str, Any]):
    found = solved(key, hardware="2x L4", **keys)
    assert plan_from_json(found.to_json()) == found
    assert found.solved.tried
