"""Which parts of a cluster a goal looks at: every number of GPUs and nodes, and where that is not so, it is said."""

from itertools import pairwise

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.shares import EVERY_NUMBER, numbers_passed_over, parts
from tests.unit.plan.asking import job, plan


@pytest.mark.parametrize("goal", ["cheapest", "fewest-gpus"])
@pytest.mark.parametrize(("hardware", "counts"), [("4x L4", range(1, 5)), ("130 x 2x L4", [1, *range(2, 261, 2)])])
def test_every_number_of_gpus_of_a_node_and_of_nodes_is_looked_at(goal, hardware, counts):
    cluster = parse_hardware(hardware)
    assert [part.num_gpus for part in parts(job(goal=goal), cluster)] == list(counts)
    assert numbers_passed_over(job(goal=goal), cluster) is None


def test_of_a_node_larger_than_there_is_any_the_cheapest_goes_in_steps_of_a_16th():
    cluster = parse_hardware("7919x L4")
    counts = [part.num_gpus for part in parts(job(goal="cheapest"), cluster)]
    assert counts[:72] == list(range(1, 73))
    assert all(after <= before * 17 / 16 for before, after in pairwise(counts[72:]))
    assert len(counts) < 200
    said = numbers_passed_over(job(goal="cheapest"), cluster)
    assert said is not None
    assert "beyond 72 they go in steps of 1/16" in said


def test_the_fastest_takes_the_whole():
    cluster = parse_hardware("130 x 2x L4")
    assert list(parts(job(), cluster)) == [cluster]


@pytest.mark.parametrize("goal", ["cheapest", "fewest-gpus"])
def test_beyond_a_thousand_nodes_they_go_in_steps_of_a_128th(goal):
    counts = [part.num_nodes for part in parts(job(goal=goal), parse_hardware("5000 x 2x L4"))][1:]
    assert counts[: EVERY_NUMBER - 1] == list(range(1, EVERY_NUMBER))
    assert all(after - before <= before / 128 for before, after in pairwise(counts[EVERY_NUMBER:]))
    assert counts[-1] == 5000


@pytest.mark.parametrize(
    ("goal", "nodes", "says"), [("fewest-gpus", 1100, True), ("fewest-gpus", 1000, False), ("fastest", 1100, False)]
)
def test_a_plan_says_where_not_every_number_was_looked_at(goal, nodes, says):
    text = f"goal: {goal}\nmethod: lora\ntrain: {{global_batch_size: 64}}\n"
    best = plan("smollm2-135m", f"{nodes} x 1x L4", text).best
    assert best is not None
    assert says == any("not every number of nodes was looked at" in reason for reason in best.reasons)
