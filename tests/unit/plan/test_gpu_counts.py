"""Which parts of a cluster a goal looks at: numbers of GPUs and of nodes."""

from itertools import pairwise

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.search.gpu_counts import parts
from tests.unit.plan.asking import job


@pytest.mark.parametrize(
    ("goal", "hardware", "counts"),
    [
        ("fewest-gpus", "4x L4", range(1, 5)),
        ("cheapest", "4x L4", range(1, 5)),
        ("fewest-gpus", "130 x 2x L4", [1, *range(2, 261, 2)]),
        ("cheapest", "130 x 2x L4", [1, *range(2, 17, 2), 32, 64, 128, 256, 260]),
    ],
)
def test_which_numbers_of_gpus_are_looked_at(goal, hardware, counts):
    cluster = parse_hardware(hardware)
    assert [part.num_gpus for part in parts(job(goal=goal), cluster)] == list(counts)


def test_the_fastest_takes_the_whole():
    cluster = parse_hardware("130 x 2x L4")
    assert list(parts(job(), cluster)) == [cluster]


def test_beyond_a_thousand_nodes_they_go_in_steps_of_a_128th():
    counts = [part.num_nodes for part in parts(job(goal="fewest-gpus"), parse_hardware("5000 x 2x L4"))][1:]
    assert counts[:1023] == list(range(1, 1024))
    assert all(after - before <= before / 128 for before, after in pairwise(counts[1024:]))
    assert counts[-1] == 5000
