"""What is told of all numbers of GPUs at once, against asking each of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan import products as products_of
from shardwise.plan import unknowns
from shardwise.plan.choices import bases, micro_batch_sizes, offloads, sized
from shardwise.plan.explorer import Explorer
from shardwise.plan.fitting import something_fits
from shardwise.plan.products import layouts
from shardwise.plan.prospects import Prospects
from shardwise.plan.question import Question, ask
from shardwise.plan.search import answer
from shardwise.plan.shares import formed_parts, parts
from shardwise.plan.solve import solve
from shardwise.plan.unknowns import find_unknown
from shardwise.spec.cluster import Cluster
from tests.unit.plan.asking import job, shape

MODELS = {
    "tiny": shape(num_hidden_layers=2),
    "wide vocabulary": shape(num_hidden_layers=2, vocab_size=60_001, num_key_value_heads=8),
    "experts": find_model("mixtral-8x7b", offline=True),
    "1b": find_model("llama-3.2-1b", offline=True),
}
SMALL = ("tiny", "wide vocabulary")


@pytest.fixture
def all_trained(monkeypatch):
    """As if the trainer accepted every layout, so that there are all of them to look at."""
    monkeypatch.setattr(products_of, "open_refusal", lambda *, method, layout, model: None)


def question(draw: random.Random, hardware: str, *, models=tuple(MODELS), batches=(1, 6, 64, 10_000)) -> Question:
    pick = draw.choice
    asked = job(
        method=pick(["full", "lora", "qlora"]),
        goal=pick(["fastest", "cheapest", "fewest-gpus"]),
        data={"max_length": pick([2, 64, 300, 2048])},
        train={
            "global_batch_size": pick(batches),
            "precision": pick(["mixed", "bf16", "fp32"]),
            "optimizer": pick(["adamw", "adamw_8bit", "sgd", "adafactor"]),
            "offload": pick(["auto", "none", "optimizer", "parameters"]),
            "loss": pick(["auto", "full", "chunked"]),
            "gradient_checkpointing": pick(["auto", "auto", "none", "full"]),
        },
    )
    return ask(asked, model=MODELS[pick(models)], cluster=parse_hardware(hardware))


def holding(cluster: Cluster, num_bytes: int) -> Cluster:
    gpu = replace(cluster.gpu, memory_bytes=num_bytes, reserved_bytes=0)
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


@pytest.mark.slow
@example(9015)  # three groups of eight GPUs, each of as many shards as there are experts
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_what_fits_on_any_part_is_expected_to(seed):
    """On GPUs that hold exactly what an execution takes, no bound over all numbers of them leaves it out."""
    draw = random.Random(seed)
    asked = question(draw, draw.choice(["6 x 4x H100-SXM", "16 x 8x L4", "3 x 1x H100-SXM", "8x A100-80GB"]))
    asked = asked.with_offload(draw.choice(offloads(asked.job, asked.cluster)))
    part = draw.choice(list(parts(asked.job, asked.cluster)))
    choices = [choice for choice in layouts(asked.job, asked.model, part) if choice.reason is None]
    for choice in draw.sample(choices, min(4, len(choices))):
        for base in bases(asked.job, asked.model, choice):
            size = draw.choice(micro_batch_sizes(asked.job, choice.layout))
            need = asked.peaks.high_bytes(sized(base, asked.job, asked.model, size))
            prospects = Prospects(replace(asked, cluster=holding(asked.cluster, need)))
            assert prospects.may_fit(base)
            assert choice.layout in {one.layout for one in prospects.layouts(part)}


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] if n >= 6 else []) for n in range(18)])
def test_whether_something_fits_on_a_part_is_what_looking_at_all_of_it_finds(all_trained, seed):
    draw = random.Random(seed)
    asked = question(draw, "3 x 1x H100-SXM", models=SMALL, batches=(1, 3, 6))
    asked = asked.with_offload(draw.choice(offloads(asked.job, asked.cluster)))
    needs = sorted(need for part in parts(asked.job, asked.cluster) for need in _needs(replace(asked, cluster=part)))
    for capacity in (needs[0] - 1, needs[0], draw.choice(needs), needs[-1]):
        whole = replace(asked, cluster=holding(asked.cluster, capacity))
        prospects = Prospects(whole)
        for part in parts(whole.job, whole.cluster):
            on_part = replace(whole, cluster=part)
            expected = _something_fits(on_part)
            assert something_fits(on_part, prospects=prospects) == expected
            assert something_fits(on_part) == expected


def _needs(asked: Question) -> list[int]:
    return [
        asked.peaks.high_bytes(sized(base, asked.job, asked.model, size))
        for choice in layouts(asked.job, asked.model, asked.cluster)
        if choice.reason is None
        for base in bases(asked.job, asked.model, choice)
        for size in micro_batch_sizes(asked.job, choice.layout)[:1]
    ]


def _something_fits(asked: Question) -> bool:
    """Every execution is forecast, none is left out."""
    explorer = Explorer(asked, prune=False, timed=False)
    return explorer.fits(
        (
            group
            for choice in layouts(asked.job, asked.model, asked.cluster)
            if explorer.why_left_out(choice) is None
            for group in explorer.groups(choice)
        ),
        every_size=True,
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_fewest_gpus_are_what_asking_each_number_finds(monkeypatch, seed):
    monkeypatch.setattr(unknowns, "MOST_GPUS", 4)
    draw = random.Random(seed)
    asked = question(draw, "1x H100-SXM", models=SMALL, batches=(1, 3, 6))
    cluster = holding(asked.cluster, draw.choice(_needs(replace(asked, cluster=parse_hardware("2x H100-SXM")))))
    unknown = find_unknown("gpus", job=asked.job, model=asked.model, cluster=cluster)
    plan = solve(unknown)
    assert plan.solved is not None
    expected = None
    for offload in offloads(asked.job, cluster):
        on_sizes = [(value, unknown.at(value).with_offload(offload)) for value in unknown.values]
        fitting = (value for value, one in on_sizes if _fits_on_a_part(one))
        expected = expected or next(fitting, None)
    assert plan.solved.value == expected
    easiest = unknown.at(unknown.values[-1] if expected is None else expected)
    assert replace(plan, solved=None) == answer(easiest)


def _fits_on_a_part(asked: Question) -> bool:
    return any(_something_fits(replace(asked, cluster=part)) for part in formed_parts(asked.job, asked.cluster))


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_that_is_told_that_nothing_fits_says_what_it_would_have_found(seed):
    draw = random.Random(seed)
    asked = question(draw, draw.choice(["2 x 4x H100-SXM", "4x L4", "1x H100-SXM"]))
    asked = replace(asked, cluster=holding(asked.cluster, 2**28))
    found = answer(asked)
    assert found.best is None
    assert answer(asked, hopeless=offloads(asked.job, asked.cluster)) == found
