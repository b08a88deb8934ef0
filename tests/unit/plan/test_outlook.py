"""What the search passes over is no layout that fits and is as good as is asked, whatever its messages take."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.choices import sized
from shardwise.plan.explorer import Explorer
from shardwise.plan.frontier import Frontier
from shardwise.plan.outlook import Outlooks
from shardwise.plan.products import layouts
from shardwise.plan.question import ask, work_on
from shardwise.plan.ranking import figures_of
from shardwise.plan.shares import parts
from shardwise.spec.cluster import Link
from tests.unit.plan.asking import job, shape

MODELS = {
    **{
        name: find_model(name, offline=True) for name in ("llama-3.1-8b", "gpt2-xl", "deepseek-v2-lite", "mixtral-8x7b")
    },
    "tiny": shape(num_hidden_layers=4, vocab_size=997),
}
HARDWARE = ("2 x 2x H100-SXM", "3 x 4x L4", "6 x 1x A100-80GB-SXM", "2 x 8x H100-SXM", "8x RTX-4090")


def question(draw: random.Random):
    pick = draw.choice
    asked = job(
        method=pick(["full", "full", "lora", "qlora"]),
        goal=pick(["cheapest", "cheapest", "fastest"]),
        data={"max_length": pick([8, 64, 512])},
        train={
            "global_batch_size": pick([1, 3, 24, 60, 1000]),
            "precision": pick(["mixed", "bf16", "fp32"]),
            "optimizer": pick(["adamw", "sgd", "adamw_8bit"]),
            "offload": pick(["none", "none", "optimizer", "parameters"]),
        },
    )
    return ask(asked, model=MODELS[pick(sorted(MODELS))], cluster=linked(draw, parse_hardware(pick(HARDWARE))))


def linked(draw: random.Random, cluster):
    """Over links of any speed, so that often messages decide."""
    node = replace(cluster.node.link, bytes_per_second=10 ** draw.uniform(8, 12))
    network = cluster.network and Link(
        name="ndr400",
        bytes_per_second=10 ** draw.uniform(7, 11.8),
        latency_seconds=1e-5,
        shared=draw.random() < 0.6,
    )
    return replace(cluster, network=network, node=replace(cluster.node, link=node))


def holding(cluster, num_bytes: int):
    gpu = replace(cluster.gpu, memory_bytes=num_bytes, reserved_bytes=0)
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


def on_exactly_enough(draw: random.Random, asked):
    """A few executions on a part of GPUs that hold just that: (question of such GPUs, part, group, figures)."""
    explorer, known = Explorer(asked), asked.job
    part = asked.cluster if known.goal == "fastest" else draw.choice(list(parts(known, asked.cluster)))
    ways = [one for one in layouts(known, asked.model, part) if one.reason is None and not explorer.why_left_out(one)]
    for choice in draw.sample(ways, min(5, len(ways))):
        groups = list(explorer.groups(choice))
        if groups:
            group = draw.choice(groups)
            execution = sized(group.base, known, asked.model, draw.choice(group.ladder).size)
            need = asked.peaks.high_bytes(execution)
            small, on = replace(asked, cluster=holding(asked.cluster, need), tables={}), holding(part, need)
            seconds = Explorer(small).time(work_on(small, on, execution)).step_seconds
            yield (
                small,
                on,
                group,
                figures_of(known.goal, seconds=seconds, num_gpus=group.base.layout.world_size, gpu=part.gpu),
            )


def is_missed(small, on, group, figures) -> bool:
    """Whether the family of an execution is not among those of interest within its own figures, or promises less."""
    explorer, layout = Explorer(small), group.base.layout
    where = list(parts(small.job, small.cluster)) if small.job.goal == "cheapest" else [small.cluster]
    spreads = Frontier(small, explorer.bounds, where).of(layout.strategy)
    taken = explorer.opener.of_interest(spreads, strategy=layout.strategy, enough=figures)
    return not any(
        one.least <= figures
        for one in taken.values()
        if one.cluster == on
        and one.spread.recompute == group.base.gradient_checkpointing
        and all(one.spread.copy[axis] == getattr(layout, axis) for axis in ("cp", "tp", "pp"))
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_what_fits_and_is_as_good_as_is_asked_is_not_passed_over(seed):
    draw = random.Random(seed)
    for case in on_exactly_enough(draw, question(draw)):
        assert not is_missed(*case)


def test_a_bound_that_is_too_high_is_noticed(monkeypatch):
    """Were messages taken to be a tenth longer, something would be passed over."""
    true = Outlooks._traffic_of

    def longer(self, strategy, family):
        traffic = true(self, strategy, family)
        return traffic and traffic._replace(ahead=1.1 * traffic.ahead, back=1.1 * traffic.back)

    def missed() -> bool:
        draws = (random.Random(seed) for seed in range(60))
        return any(is_missed(*case) for draw in draws for case in on_exactly_enough(draw, question(draw)))

    assert not missed()
    monkeypatch.setattr(Outlooks, "_traffic_of", longer)
    assert missed()


@pytest.mark.parametrize("offload", ["none", "parameters"])
def test_backwards_are_cut_in_two_only_where_the_search_looks_for_that(offload):
    """Of layouts that make weights whole for each micro-batch: see `frontier.orders_sending`."""
    asked = ask(
        job(train={"offload": offload}), model=MODELS["llama-3.1-8b"], cluster=parse_hardware("2 x 8x H100-SXM")
    )
    explorer = Explorer(asked)
    cut = {
        choice.strategy.split(" x ")[0]
        for choice in layouts(asked.job, asked.model, asked.cluster)
        if choice.layout.schedule == "zero_bubble" and explorer.why_left_out(choice) is None
    }
    assert cut == ({"pp", "ddp", "zero1", "zero2"} if offload == "none" else set())
