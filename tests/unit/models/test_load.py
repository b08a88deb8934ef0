"""Finding a model's folder, its weights, and what tells its content from another's."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import nn

from shardwise.api import plan
from shardwise.catalog.models import hub_id
from shardwise.data.read.hub import tokenizer_folder
from shardwise.errors import ModelError
from shardwise.models import content
from shardwise.models.built.shape import shape_of
from shardwise.models.content import folder_content
from shardwise.models.load import build_on_meta, find_model_folder, materialise, read_config
from shardwise.models.weights import Weights
from shardwise.models.wrapper import text_config
from shardwise.spec.job.keys import Job
from shardwise.spec.run import RunDirectory, note_revision, revision_of
from tests.dist.tiny import tiny_config
from tests.dist.worlds import toy_model
from tests.refusals import must_refuse, said_by

WEIGHTS = "model.safetensors"
ROWS, COLUMNS = 256, 64
LAST = ROWS * COLUMNS - 1


def hub_cache(home: Path, repository: str) -> Path:
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    return folder / "snapshots" / ("0" * 40)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub without a network, whose cache is in `tmp_path`."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.mark.parametrize("name", ["org/name", "tinyllama-1.1b", "TinyLlama-1.1B", "tinyllama/TINYLLAMA-1.1B-Chat-v1.0"])
def test_hub_ids_and_catalogue_names_load_from_the_cache_however_they_are_written(name, offline, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(offline / "hub"))
    snapshot = toy_model(hub_cache(offline, hub_id(name)))
    (snapshot / "tokenizer_config.json").write_text("{}")
    assert find_model_folder(name) == tokenizer_folder(name) == snapshot
    assert find_model_folder(str(snapshot)) == find_model_folder(str(snapshot / "config.json")) == snapshot


def test_a_revision_that_was_read_before_is_read_again(offline, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(offline / "hub"))
    older = toy_model(hub_cache(offline, "org/name"))
    (older / "tokenizer_config.json").write_text("{}")
    newer = shutil.copytree(older, older.with_name("b" * 40))
    (older.parent.parent / "refs" / "main").write_text(newer.name)
    assert find_model_folder("org/name") == newer
    run = RunDirectory(offline / "run")
    assert revision_of(run, "org/name") is None
    note_revision(run, "org/name", folder=older)
    assert find_model_folder("org/name", revision=revision_of(run, "org/name")) == older
    assert tokenizer_folder("org/name", revision=revision_of(run, "org/name")) == older
    assert tokenizer_folder("org/name") == tokenizer_folder(str(newer)) == newer
    assert revision_of(run, "org/other") is None
    run.model.write_text('{"model": "org/name", "revision": "../../elsewhere"}')
    assert revision_of(run, "org/name") is None


def test_the_plan_of_a_run_is_of_the_revision_that_it_reads(offline, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(offline / "hub"))
    older = toy_model(hub_cache(offline, "org/name"))
    newer = shutil.copytree(older, older.with_name("b" * 40))
    config = json.loads((newer / "config.json").read_text())
    (newer / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 7}))
    os.utime(older / "config.json", (0, 0))
    assert shape_of("org/name").num_layers == 7
    assert shape_of("org/name", revision=older.name).num_layers == config["num_hidden_layers"]
    run = RunDirectory(offline / "run")
    job = {"model": "org/name", "data": {"path": "rows.jsonl"}, "hardware": "cpu:1", "output_dir": str(run.root)}
    assert plan(Job.model_validate(job)).model["num_layers"] == 7
    note_revision(run, "org/name", folder=older)
    assert plan(Job.model_validate(job)).model["num_layers"] == config["num_hidden_layers"]


@pytest.mark.parametrize("name", ["org/missing", "not a / name / at all"])
def test_what_is_nowhere_is_a_sentence(name, offline) -> None:
    must_refuse(ModelError, "is neither a folder nor a model the hub gives", find_model_folder, name)


@pytest.mark.parametrize("text", ["{", '{"model_type": "no-such"}', "[]", '{"model_type": "llama", "hidden_size": 66}'])
def test_a_configuration_transformers_cannot_read_is_a_sentence(text, tmp_path) -> None:
    (tmp_path / "config.json").write_text(text)
    must_refuse(ModelError, r"config\.json: transformers cannot read it", read_config, tmp_path)


def test_code_inside_a_folder_is_never_run(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}')
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    said_by(ModelError, read_config, tmp_path)
    assert not (tmp_path / "ran").exists()


def _with_a_head_of_its_own(folder: Path, *, times: float, rows: int | None = None) -> Path:
    """A tied model whose file holds its head too: a multiple of the embedding, or fewer rows."""
    toy_model(folder, tied=True)
    stored = load_file(folder / "model.safetensors")
    head = stored["model.embed_tokens.weight"][:rows].clone() * times
    save_file({**stored, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _materialised(folder: Path) -> nn.Module:
    model = build_on_meta(read_config(folder), attn_implementation="sdpa")
    materialise(model, weights=Weights(folder), device=torch.device("cpu"), initialise=lambda name, shape: None)
    return model


def test_a_tied_weight_may_stand_in_the_folder_twice(tmp_path) -> None:
    folder = _with_a_head_of_its_own(tmp_path / "m", times=1.0)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(_materialised(folder).get_parameter("lm_head.weight"), embedding)


@pytest.mark.parametrize("keys", [{"times": 1.5}, {"times": 1.0, "rows": 96}], ids=["other values", "fewer rows"])
def test_a_head_that_is_not_the_embedding_it_is_tied_to_is_refused(tmp_path, keys) -> None:
    folder = _with_a_head_of_its_own(tmp_path / "m", **keys)
    assert said_by(ModelError, _materialised, folder) == (
        f"{folder / WEIGHTS}: model.embed_tokens.weight is not lm_head.weight, to which config.json ties it; where "
        "both are meant, write tie_word_embeddings: false there, otherwise save the model again without one of them"
    )


def test_layers_behind_the_last_are_passed_over_as_many_as_foretell_further_tokens(tmp_path) -> None:
    folder = toy_model(tmp_path, family="glm4_moe", first_k_dense_replace=3)
    stray = {f"model.layers.{index}.eh_proj.weight": torch.ones(32, 64) for index in (3, 4)}
    save_file(load_file(folder / WEIGHTS) | stray, folder / WEIGHTS, metadata={"format": "pt"})
    said = said_by(ModelError, _materialised, folder)
    assert said == f"{folder / WEIGHTS}: model.layers.4.eh_proj.weight has no place in this architecture"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_each_weight_that_is_not_finite_is_named_with_its_file(tmp_path, bad) -> None:
    folder = toy_model(tmp_path / "m")
    stored = load_file(folder / "model.safetensors")
    named = ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"]
    for name in named:
        stored[name][-1, -1] = bad
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    said = said_by(ModelError, _materialised, folder).splitlines()
    assert sorted(said) == [f"{folder / WEIGHTS}: the weight {name} holds NaN or infinity" for name in named]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two matrices of 16 blocks each, and a norm that is smaller than a block."""
    made = tmp_path / "model"
    made.mkdir()
    for name in ("config.json", "tokenizer.json", "README.md"):
        (made / name).write_text("{}")
    tensors = {name: torch.zeros(ROWS, COLUMNS) for name in ("first", "second")}
    save_file(tensors | {"norm": torch.ones(COLUMNS)}, made / WEIGHTS)
    return made


def _differing(folder: Path, change: Callable[[Path], object]) -> set[str]:
    """Names of the files whose hashes a change of a copy makes others."""
    other = folder.with_name("other")
    shutil.copytree(folder, other)
    change(other)
    one, two = (folder_content(where, weights=[WEIGHTS]) for where in (folder, other))
    return {name for name in one | two if one.get(name) != two.get(name)}


def _set(name: str, place: int) -> Callable[[Path], object]:
    """Changes one element of a tensor; the file keeps its size and its header."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        tensors[name].view(-1)[place] = 0.5
        save_file(tensors, folder / WEIGHTS)

    return change


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_set("first", 0), WEIGHTS),
        (_set("second", LAST // 2), WEIGHTS),
        (_set("second", LAST), WEIGHTS),
        (_set("norm", 7), WEIGHTS),
        (lambda other: (other / "config.json").write_text("[]"), "config.json"),
        (lambda other: (other / "generation_config.json").write_text("{}"), "generation_config.json"),
        (lambda other: (other / "tokenizer.json").unlink(), "tokenizer.json"),
    ],
)
def test_a_file_that_differs_has_another_hash_and_weights_do_where_they_are_sampled(folder, change, name, monkeypatch):
    monkeypatch.setattr(content, "WHOLE_BYTES", (folder / WEIGHTS).stat().st_size - 1)
    assert _differing(folder, change) == {name}


def test_stacks_of_experts_need_no_memory_while_a_model_is_built() -> None:
    model = build_on_meta(tiny_config("qwen3_moe", moe_intermediate_size=2**36), attn_implementation="sdpa")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_towers_need_not_know_the_attention_of_the_language_model() -> None:
    config = tiny_config("gemma4", audio_config={"model_type": "gemma4_audio"})
    model = build_on_meta(config, attn_implementation="varlen")
    assert text_config(model.config)._attn_implementation == "varlen"
