"""Families without a row: which of them are left to a build, told without importing transformers."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.catalog import unlisted as module
from shardwise.catalog.config import shape_from_data
from shardwise.catalog.unlisted import UnlistedFamilyError
from shardwise.errors import ModelError
from tests.dist.worlds import installed


def refused(kind: object, **changes: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        shape_from_data({"model_type": kind, **changes}, file="f")
    return caught.value


@pytest.mark.parametrize("kind", ["mamba", "bert", "persimmon", "roberta-prelayernorm"])
def test_what_transformers_has_is_left_to_a_build(kind: str) -> None:
    error = refused(kind, hidden_size=8)
    assert isinstance(error, UnlistedFamilyError)
    assert (error.data, error.file) == ({"model_type": kind, "hidden_size": 8}, "f")
    assert str(error) == f"f: model_type '{kind}' has no row in the catalogue, and was not built"


def test_families_are_found_as_transformers_lists_them() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = module._installed()
    assert found is not None
    assert [kind for kind in installed([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]) if not module._has(found, kind)] == []


@pytest.mark.parametrize("kind", ["llamax", "", "a" * 100, "../auto", "mam.a", "LlamaConfig", None, 3, ["mamba"]])
def test_what_transformers_has_not_is_not_known(kind: object) -> None:
    error = refused(kind)
    assert not isinstance(error, UnlistedFamilyError)
    assert "is not known; known are arcee, bloom, " in str(error) or "has no model_type" in str(error)


def test_code_and_too_many_layers_are_refused_before_anything_is_built() -> None:
    assert "trust_remote_code names Python code" in str(refused("mamba", trust_remote_code=True))
    assert "quantised already" in str(refused("mamba", quantization_config={"bits": 4}))
    said = str(refused("mamba", num_hidden_layers=100_000))
    assert "num_hidden_layers is 100000; expected a whole number from 1 to 1000" in said


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_without_what_builds_it_is_said_what_to_install(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = module.importlib.util.find_spec
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    assert (
        "model_type 'mamba' is not known; with `pip install shardwise[train]`, other families that transformers has "
        "are counted by building them; known are arcee, " in str(refused("mamba"))
    )
