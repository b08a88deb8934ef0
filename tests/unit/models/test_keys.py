"""Weights are found and saved under transformers' keys, in every family that is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from shardwise.catalog.families.known import FAMILIES
from shardwise.errors import ModelError, UnsupportedError
from shardwise.models.buffers import saved_buffers
from shardwise.models.built.shape import built_shape, shape_of
from shardwise.models.keys import Keys
from shardwise.models.load import build_on_meta, materialise, read_config
from shardwise.models.weights import Weights
from shardwise.spec.support.trained import refused_everywhere
from tests.dist.tiny import tiny_config
from tests.dist.worlds import installed, said_by, skip_without
from tests.refusals import must_refuse
from tests.unit.catalog.small import small_config, their_config
from tests.unit.plan.asking import job

KINDS = installed(tuple(FAMILIES))


def saved_by_transformers(kind: str, folder: Path, *, tied: bool) -> dict[str, torch.Tensor]:
    """A random model as save_pretrained writes it; what it holds, by the names it has live."""
    torch.manual_seed(0)
    config = their_config(small_config(kind, tie_word_embeddings=tied))
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for tensor in (*model.parameters(), *saved_buffers(model).values()):  # no two alike, biases and norms neither
        nn.init.normal_(tensor)
    model.save_pretrained(folder)
    return dict(model.named_parameters(remove_duplicate=False)) | saved_buffers(model)


def load(folder: Path) -> tuple[nn.Module, Keys]:
    model, weights = build_on_meta(read_config(folder), attn_implementation="eager"), Weights(folder)
    keys = Keys(model, weights.names, weights.shape)
    weights.rename(keys)
    materialise(model, weights=weights, device=torch.device("cpu"), initialise=lambda _name, _shape: None)
    return model, keys


def change_file(folder: Path, change: dict[str, torch.Tensor]) -> None:
    save_file({**load_file(folder / "model.safetensors"), **change}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(("kind", "tied"), [*((kind, False) for kind in KINDS), ("llama", True), ("gpt_neox", True)])
def test_every_weight_is_found_and_saved_as_transformers_does(kind: str, tied: bool, tmp_path: Path) -> None:
    expected = saved_by_transformers(kind, tmp_path, tied=tied)
    model, keys = load(tmp_path)
    found = dict(model.named_parameters(remove_duplicate=False)) | saved_buffers(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    saved: list[str] = []
    for name, tensor in (*model.named_parameters(), *saved_buffers(model).items()):
        shape = tuple(tensor.shape)
        saved += [span.key for span in keys.spans(name, shape=shape, offsets=(0,) * len(shape), lengths=shape)]
    assert sorted(saved) == sorted(Weights(tmp_path).names)


def test_a_window_of_stacked_experts_is_read_from_the_matrices_that_it_lies_in(tmp_path: Path) -> None:
    saved = saved_by_transformers("mixtral", tmp_path, tied=False)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    model, weights = build_on_meta(read_config(tmp_path), attn_implementation="eager"), Weights(tmp_path)
    weights.rename(Keys(model, weights.names, weights.shape))
    experts, rows, columns = saved[name].shape
    found = weights.read(name, offsets=(1, rows // 2 - 3, 2), lengths=(experts - 2, 7, columns - 5))
    assert torch.equal(found, saved[name][1 : experts - 1, rows // 2 - 3 : rows // 2 + 4, 2 : columns - 3])
    assert weights.read(name, offsets=(experts, 0, 0), lengths=(0, rows, columns)).shape == (0, rows, columns)


def test_an_expert_that_lacks_a_matrix_or_has_an_odd_one_is_a_sentence(tmp_path: Path) -> None:
    saved_by_transformers("mixtral", tmp_path, tied=False)
    stored = load_file(tmp_path / "model.safetensors")
    key = next(key for key in stored if key.endswith("layers.0.block_sparse_moe.experts.1.w1.weight"))
    change_file(tmp_path, {key: torch.ones(3, 5)})
    must_refuse(ModelError, r"experts\.1\.w1\.weight has the shape \(3, 5\), and .*experts\.0", load, tmp_path)
    save_file({k: v for k, v in stored.items() if k != key}, tmp_path / "model.safetensors", {"format": "pt"})
    must_refuse(ModelError, r"experts lack a matrix: there are \d+ like .*w1\.weight, \d+ like", load, tmp_path)


def test_older_buffers_are_passed_over_and_one_weight_under_two_keys_is_a_sentence(tmp_path: Path) -> None:
    saved_by_transformers("gpt_neox", tmp_path, tied=False)
    old = {"bias": torch.ones(1, 1, 8, 8, dtype=torch.bool), "masked_bias": torch.tensor(-1e9)}
    old["rotary_emb.inv_freq"] = torch.ones(4)  # of the files of EleutherAI's Pythia
    change_file(tmp_path, {f"gpt_neox.layers.0.attention.{name}": value for name, value in old.items()})
    load(tmp_path)
    weight = saved_by_transformers("gpt_neox", tmp_path, tied=False)["lm_head.weight"]
    change_file(tmp_path, {"lm_head.weight": weight.detach().clone()})
    must_refuse(ModelError, r"embed_out\.weight and lm_head\.weight are both lm_head\.weight of this", load, tmp_path)


def test_what_is_wrong_is_said_of_the_key_in_the_file(tmp_path: Path) -> None:
    saved_by_transformers("gpt_neox", tmp_path, tied=False)
    change_file(tmp_path, {"embed_out.weight": torch.ones(3, 5)})
    with pytest.raises(ModelError, match=r"embed_out\.weight has the shape \(3, 5\); config\.json asks for \(97, 64\)"):
        load(tmp_path)


def test_what_loading_makes_of_weights_in_an_unknown_way_is_refused(tmp_path) -> None:
    skip_without("inkling2_text")
    tiny_config("inkling2_text").save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    assert "w13_weight transformers makes model.layers.0.mlp.experts.gate_up_proj as it loads" in shape.untrained
    assert refused_everywhere(job(), shape)[0] == shape.untrained
    model = build_on_meta(read_config(tmp_path), attn_implementation="eager")
    key = "model.llm.layers.0.mlp.experts.w13_weight"
    said = said_by(UnsupportedError, Keys, model, [key], lambda _: (4, 64, 64))
    assert "w13_weight transformers makes model.layers.0.mlp.experts.gate_up_proj as it loads, by Interleave" in said
    assert said.endswith("save it by save_pretrained(folder, save_original_format=False)")
    whole: Any = AutoModelForCausalLM.from_config(tiny_config("inkling2_text"), dtype=torch.float32)
    for original in (True, False):
        whole.save_pretrained(tmp_path, save_original_format=original)
        assert bool(shape_of(str(tmp_path)).untrained) is original
        config = json.loads((tmp_path / "config.json").read_text())
        assert bool(built_shape(config, file=str(tmp_path)).untrained) is original
