"""A saved config.json holds the names that transformers 5 gave up too, and is read as before."""

import json
from typing import Any

import pytest
from transformers import AutoConfig

from shardwise.train.saving.older_names import keep_older_names

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "factor": 8.0}
#: A family, and what its configuration says; the names of rotary positions are those given up.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "base alone": ("llama", {"rope_theta": 500000.0}),
    "scaled": ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3, "max_position_embeddings": 131072}),
    "part of a head": ("stablelm", {"rope_theta": 20000.0, "partial_rotary_factor": 0.25}),
    "two kinds of layers": ("gemma3_text", {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "rope_scaling": LINEAR}),
    "no rotary embedding": ("gpt2", {}),
    "infinity": ("mamba2", {}),
    "an older name that transformers refuses": ("gemma4_text", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_older_names_stand_beside_the_new_ones(case: str, tmp_path) -> None:
    family, settings = CASES[case]
    expected = {key: value for key, value in settings.items() if "rope" in key or "rotary" in key}
    config: Any = AutoConfig.for_model(family, **json.loads(json.dumps(settings)))
    config.save_pretrained(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    keep_older_names(tmp_path, config, None)
    after = json.loads((tmp_path / "config.json").read_text())
    assert {key: value for key, value in after.items() if key not in before} == expected
    read: Any = AutoConfig.from_pretrained(tmp_path)
    assert {**read.to_dict(), "_name_or_path": ""} == config.to_dict()


def test_a_text_model_inside_another_keeps_them_too(tmp_path) -> None:
    config: Any = AutoConfig.for_model("mistral3")
    config.save_pretrained(tmp_path)
    keep_older_names(tmp_path, config, None)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert text["rope_theta"] == text["rope_parameters"]["rope_theta"]


def test_what_the_base_states_is_kept_where_it_changes_nothing(tmp_path) -> None:
    base, folder = tmp_path / "base", tmp_path / "final"
    base.mkdir()
    stated = {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 20000, "torch_dtype": "float16"}
    (base / "config.json").write_text(json.dumps({**stated, "_name_or_path": "elsewhere", "hidden_size": 64}))
    config: Any = AutoConfig.from_pretrained(base)
    config.hidden_size = 128
    config.save_pretrained(folder)
    before = json.loads((folder / "config.json").read_text())
    keep_older_names(folder, config, base)
    after = json.loads((folder / "config.json").read_text())
    assert (after["rotary_pct"], after["rotary_emb_base"], after["hidden_size"]) == (0.5, 20000, 128)
    assert not {"torch_dtype", "_name_or_path"} & (set(after) - set(before))


def test_a_scaling_that_was_trained_is_not_the_bases(tmp_path) -> None:
    base, folder = tmp_path / "base", tmp_path / "final"
    base.mkdir()
    (base / "config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3}))
    config: Any = AutoConfig.from_pretrained(base)
    config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    config.save_pretrained(folder)
    keep_older_names(folder, config, base)
    after = json.loads((folder / "config.json").read_text())
    assert after["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert AutoConfig.from_pretrained(folder).rope_parameters == config.rope_parameters
