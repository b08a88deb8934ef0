"""Stages are balanced by what their parts cost, and every block lies in exactly one."""

from __future__ import annotations

import pytest

from shardwise.catalog.models import read_model
from shardwise.spec.stages import stage_blocks


def test_a_large_head_takes_blocks_off_the_last_stage() -> None:
    # The head of Llama-3.2-1B weighs as much as four of its sixteen blocks.
    assert [len(stage) for stage in stage_blocks(read_model("llama-3.2-1b"), num_stages=2)] == [9, 7]
    # That of TinyLlama is small beside its 22 blocks.
    assert [len(stage) for stage in stage_blocks(read_model("tinyllama-1.1b"), num_stages=2)] == [11, 11]


def test_more_stages_than_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="23 pipeline stages for 22 layers; use at most 22"):
        stage_blocks(read_model("tinyllama-1.1b"), num_stages=23)
