"""Catalogue names whose family has no row: planned from what was measured, without torch."""

import pytest
from tools.profiles import unlisted

from shardwise.api import plan
from shardwise.api.plans import shapes
from shardwise.catalog.measured import measured
from shardwise.catalog.models import known_models


def test_every_name_without_a_row_was_measured() -> None:
    assert len(unlisted()) >= 20
    assert [name for name, known in unlisted().items() if measured(known.config) is None] == []


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("rows", ["max_length=512", "max_length=8192"])
def test_a_name_is_planned_without_a_build(method, rows, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "built_shape", None)
    monkeypatch.setattr(shapes, "block_profiles", None)
    made = plan(overrides=["model=gemma-4-31b", "hardware=8x H100-SXM", f"method={method}", f"data.{rows}"])
    assert made.best is not None
    assert "what its blocks keep was measured in PyTorch's own code" in made.best.reasons[-1]


def test_what_was_not_measured_so_is_measured(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(shapes, "block_profiles", lambda question: asked.append(question) or "not here")
    keys = ["model=qwen3.5-0.8b", "hardware=1x H100-SXM", "method=lora"]
    plan(overrides=keys)
    assert not asked
    plan(overrides=[*keys, "lora.r=3"])
    assert asked
    assert known_models()["qwen3.5-0.8b"].config == asked[0]["config"]
