"""Layouts of one strategy, which are formed without the others."""

from math import prod

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.plan.products import layouts_of, layouts_spread
from tests.unit.plan.asking import job, shape

COPIES = [{"cp": 1, "tp": tp, "pp": pp} for tp in (1, 2) for pp in (1, 2, 3)]
HARDWARE = ["1x L4", "2x L4", "6x L4", "8x L4", "3 x 8x L4"]


@pytest.mark.parametrize("hardware", HARDWARE)
def test_the_layouts_of_a_strategy_are_those_of_all_that_bear_its_name(hardware: str):
    asked, model, cluster = job(), shape(), parse_hardware(hardware)
    for copy in (copy for copy in COPIES if cluster.num_gpus % prod(copy.values()) == 0):
        every = list(layouts_spread(asked, model, cluster, copy=copy))
        assert every
        for strategy in {choice.strategy for choice in every} | {"ddp", "hsdp x pp", "cp"}:
            named = [choice for choice in every if choice.strategy == strategy]
            assert list(layouts_of(strategy, asked, model, cluster, copy=copy)) == named
