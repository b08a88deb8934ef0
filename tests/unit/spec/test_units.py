"""Which blocks are gathered together, and which layouts may say so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import JobError
from shardwise.spec.job_file import job_from_data
from shardwise.spec.layout import Layout
from shardwise.spec.units import unit_blocks


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(0, 200))
def test_every_block_is_in_one_unit_and_all_but_the_last_are_large_enough(sizes: list[int], least: int) -> None:
    units = unit_blocks(sizes, least=least)
    assert [index for unit in units for index in unit] == list(range(len(sizes)))
    for unit in units[:-1]:
        held = [sizes[index] for index in unit]
        assert sum(held) >= least
        assert sum(held[:-1]) < max(least, 1), "it was large enough before"


def test_by_itself_each_block_is_a_unit() -> None:
    assert unit_blocks([5, 5, 5], least=0) == (range(1), range(1, 2), range(2, 3))


@pytest.mark.parametrize(
    "keys",
    [
        {"layout": {"dp_replicate": 2, "prefetch": 2}},
        {"layout": {"dp_shard": 2, "zero_stage": 1, "min_num_params": 5}},
        {"layout": {"min_num_params": 5}, "train": {"offload": "optimizer"}},
    ],
)
def test_units_of_whole_weights_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="has no effect where weights are whole on every GPU"):
        job_from_data({"model": "m", **keys})


def test_weights_that_come_from_the_host_have_units_on_one_gpu_too() -> None:
    job = job_from_data({"model": "m", "layout": {"prefetch": 3}, "train": {"offload": "parameters"}})
    assert not isinstance(job.layout, str)
    assert job.layout.to_layout() == Layout(prefetch=3)
