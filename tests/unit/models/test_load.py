"""Finding a model's folder: local, or the hub's own cache; the network is never needed twice."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shardwise.errors import ModelError
from shardwise.methods.lora import add_adapters, initial_adapter, is_adapter
from shardwise.models.load import build_on_meta, find_model_folder, materialise, read_config
from shardwise.models.weights import Weights
from shardwise.spec.job import LoraSpec
from tests.dist.worlds import toy_llama


def hub_cache(home: Path, repository: str) -> Path:
    """A snapshot as huggingface_hub lays it out."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    return snapshot


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub without a network, whose cache is in `tmp_path`."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def test_a_folder_and_a_file_in_it_mean_the_folder(tmp_path: Path) -> None:
    folder = toy_llama(tmp_path / "m", tied=False)
    assert find_model_folder(str(folder)) == folder
    assert find_model_folder(str(folder / "config.json")) == folder


@pytest.mark.parametrize("name", ["org/name", "tinyllama-1.1b"])
def test_hub_ids_and_catalogue_names_load_from_the_cache(name: str, offline: Path) -> None:
    repository = {"org/name": "org/name", "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}[name]
    from shardwise.catalog.models import known_models

    if name in known_models():
        repository = known_models()[name].hub_id
    snapshot = toy_llama(hub_cache(offline, repository), tied=False)
    assert find_model_folder(name) == snapshot


@pytest.mark.parametrize("name", ["org/missing", "not a / name / at all"])
def test_what_is_nowhere_is_a_sentence(name: str, offline: Path) -> None:
    with pytest.raises(ModelError, match="is neither a folder nor a model the hub gives"):
        find_model_folder(name)


@pytest.mark.parametrize("text", ["{", '{"model_type": "no-such-model"}', "[]"])
def test_a_configuration_transformers_cannot_read_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json: transformers cannot read it"):
        read_config(tmp_path)


def test_code_inside_a_folder_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}')
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError):
        read_config(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_whole_values_of_adapters_exist_one_at_a_time(tmp_path: Path) -> None:
    folder = toy_llama(tmp_path, tied=False)
    model = build_on_meta(read_config(folder), attn_implementation="sdpa")
    add_adapters(model, LoraSpec(r=4), base_model="base")
    made: dict[str, weakref.ref[torch.Tensor]] = {}

    def initialise(name: str, shape: tuple[int, ...]) -> Callable[[], torch.Tensor] | None:
        make = initial_adapter(name, shape, seed=3)

        def watched() -> torch.Tensor:
            assert make is not None
            assert [earlier for earlier, value in made.items() if value() is not None] == []
            made[name] = weakref.ref(whole := make())
            return whole

        return watched if make else None

    materialise(model, weights=Weights(folder), device=torch.device("cpu"), initialise=initialise)
    adapters = {name: p for name, p in model.named_parameters() if is_adapter(name)}
    assert made.keys() == adapters.keys()
    for name, parameter in adapters.items():
        make = initial_adapter(name, tuple(parameter.shape), seed=3)
        assert make is not None
        assert torch.equal(parameter, make())
