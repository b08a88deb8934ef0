"""Rows that are longer than a model's positions are refused, unless its configuration says how these are stretched."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardwise.catalog.stated import stretched_positions
from shardwise.errors import UnsupportedError
from shardwise.train.build import _check_positions
from tests.dist.worlds import said_by
from tests.unit.plan.asking import shape


def _rows(longest: int) -> Any:
    return cast(Any, SimpleNamespace(longest_document=longest))


def test_a_row_beyond_the_positions_is_refused() -> None:
    model = shape()
    most = model.max_position_embeddings
    _check_positions(_rows(most), model)
    said = said_by(UnsupportedError, _check_positions, _rows(most + 1), model)
    assert f"a row has {most + 1:,} tokens, and the model has {most:,} positions" in said
    assert "add rope_scaling to the job" in said


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaling_reaches_its_factor_times_the_original(key) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert stretched_positions({key: yarn}) == 131072
    assert stretched_positions({key: {"rope_type": "default", "rope_theta": 1e6}}) == 0
