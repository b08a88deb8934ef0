"""Models without a row in the catalogue: planned from a build, or refused at their place."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardwise.api import plan
from shardwise.api.plans import shapes
from shardwise.catalog.config import shape_from_data
from shardwise.errors import ModelError
from tests.dist.worlds import skip_without
from tests.unit.catalog.small import small_config

SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97}


def asked(folder: Path, kind: str) -> list[str]:
    skip_without(kind)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SIZES}))
    return [f"model={folder}", "hardware=2x A100-80GB", "data.max_length=512"]


@pytest.mark.slow
def test_a_plan_says_that_its_shape_was_read_off_a_build(tmp_path: Path) -> None:
    made = plan(overrides=asked(tmp_path, "persimmon"))
    assert made.model["built"] == ("stages", "documents")
    assert made.best.reasons[-1] == (
        "the catalogue has no row for this persimmon: its shape was read off the model that transformers builds; "
        "what its blocks keep was measured in PyTorch's own code, as where no package with kernels is installed"
    )
    refused = {rejection.strategy: rejection.reason for rejection in made.rejected}
    lacks = "sliced by tensor parallel (tp): transformers has no tensor parallel plan of its blocks; the nearest"
    assert f"persimmon is not {lacks} layout that trains it: fsdp" in refused["tp"]


def test_what_is_not_understood_is_refused_at_its_place(tmp_path: Path) -> None:
    overrides = asked(tmp_path, "bert")
    with pytest.raises(ModelError, match=r"model_type 'bert' has no row .* it is an encoder") as caught:
        plan(overrides=overrides)
    assert "model" in str(caught.value.problems[0].where)


def test_a_model_is_built_once_for_all_that_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(tmp_path, "persimmon")
    asked_of: list[tuple[dict[str, Any], str]] = []
    known = shape_from_data(small_config("llama"), file="config.json")
    monkeypatch.setattr(shapes, "built_shape", lambda data, *, file: asked_of.append((data, file)) or known)
    assert [shapes.find_model(str(tmp_path)) for _ in range(3)] == [known] * 3
    assert len(asked_of) == 1
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "persimmon", **SIZES, "num_hidden_layers": 4}))
    shapes.find_model(str(tmp_path))
    assert [data["num_hidden_layers"] for data, _ in asked_of] == [3, 4]
