"""What is sent bounds what a step takes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.choices import bases, sized
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Frontier
from shardwise.plan.kernels import OFFLOAD_BYTES_PER_SECOND
from shardwise.plan.needs import ROUNDING
from shardwise.plan.products import layouts
from shardwise.plan.question import ask, work_on
from shardwise.plan.shares import parts
from shardwise.plan.traffic import Traffic, least_traffic
from tests.unit.plan.asking import job

MODELS = {name: find_model(name, offline=True) for name in ("llama-3.1-8b", "mixtral-8x7b", "qwen3-0.6b", "gpt2-xl")}
HARDWARE = ("4x RTX-4090", "2 x 4x L4", "3 x 8x H100-SXM", "6 x 1x A100-80GB-SXM", "cpu:4")


def question(draw: random.Random):
    pick = draw.choice
    keys = {
        "global_batch_size": pick([1, 8, 60, 1000]),
        "precision": pick(["mixed", "bf16", "fp32"]),
        "offload": pick(["none", "parameters"]),
    }
    asked = job(
        method=pick(["full", "lora", "qlora"]),
        goal=pick(["fastest", "cheapest"]),
        data={"max_length": pick([16, 512])},
        train=keys,
    )
    return ask(asked, model=MODELS[pick(sorted(MODELS))], cluster=parse_hardware(pick(HARDWARE)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_step_takes_no_less_than_what_its_blocks_send(seed):
    draw = random.Random(seed)
    asked = question(draw)
    explorer, known = Explorer(asked), asked.job
    open_ways = [choice for choice in layouts(known, asked.model, asked.cluster) if choice.reason is None]
    groups = [group for choice in draw.sample(open_ways, min(12, len(open_ways))) for group in explorer.groups(choice)]
    for group in groups:
        rung = draw.choice(group.ladder)
        least = explorer.least_sending(group, rung)
        sends = group.base.gathers_weights and not group.base.postpones_reduction
        assert (least is not None) == sends
        if least is not None:
            work = work_on(asked, group.cluster, sized(group.base, known, asked.model, rung.size))
            seconds = explorer.time(work).step_seconds
            assert least <= explorer._figures(group, seconds)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_what_a_strategy_sends_at_least_is_no_more_than_any_layout_sends(seed):
    draw = random.Random(seed)
    asked = question(draw)
    explorer = Explorer(asked)
    frontier = Frontier(asked, explorer.bounds, list(parts(asked.job, asked.cluster)))
    outlooks, bounds = explorer.outlooks, explorer.bounds
    for name in sorted(frontier.strategies):
        if not outlooks._sends(name):
            continue
        for spread in draw.sample(frontier.of(name), min(4, len(frontier.of(name)))):
            lightest = outlooks._lightest(spread, name)
            for part in spread.parts:
                family = spread.family(part)
                least = outlooks._traffic_of(name, family)
                each = [group.base.layout for group in explorer.opener.opened(family, name)]
                assert (least is not None) or not each
                for layout in each:
                    one = least_traffic(bounds.loads_of(spread.alike), part, [layout])
                    assert all(a * ROUNDING <= b for a, b in zip(least, one, strict=True))
                    assert all(a * ROUNDING <= b for a, b in zip(lightest, one, strict=True))


def test_a_block_takes_the_longer_of_what_it_computes_and_sends():
    traffic = Traffic(ahead=2.0, back=5.0, fetched=0.5, again=0.25)
    assert traffic.over(1.0, 3.0) == 2.0 + 5.0
    assert traffic.over(4.0, 6.0) == 4.5 + 6.25


def test_one_gpu_waits_for_what_it_fetches():
    asked = ask(
        job(method="full", train={"offload": "parameters"}), model=MODELS["gpt2-xl"], cluster=parse_hardware("1x L4")
    )
    explorer = Explorer(asked)
    (choice,) = (one for one in layouts(asked.job, asked.model, asked.cluster) if one.reason is None)
    (base, *_) = bases(asked.job, asked.model, choice)
    loads = explorer.bounds.loads_of(explorer.bounds.alike(asked.cluster, base))
    traffic = least_traffic(loads, asked.cluster, [choice.layout])
    assert traffic.ahead == 0.0
    assert traffic.fetched == traffic.again == pytest.approx(loads.stored / OFFLOAD_BYTES_PER_SECOND)
