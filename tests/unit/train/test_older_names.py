"""A saved config.json holds the names that transformers 5 gave up too, and is read as before."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from shardwise.train.saving.older_names import keep_older_names

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "factor": 8.0}
#: A family, and its settings by their older names, which all come back.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "base alone": ("llama", {"rope_theta": 500000.0}),
    "scaled": ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "part of a head": ("stablelm", {"rope_theta": 20000.0, "partial_rotary_factor": 0.25}),
    "two kinds": ("gemma3_text", {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "rope_scaling": LINEAR}),
    "no rotary embedding": ("gpt2", {}),
    "infinity": ("mamba2", {}),
    "an older name that transformers refuses": ("gemma4_text", {}),
}


def saved(folder: Path, config: Any, base: Path | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json as transformers writes it, and with the older names."""
    config.save_pretrained(folder)
    before = json.loads((folder / "config.json").read_text())
    keep_older_names(folder, config, base)
    return before, json.loads((folder / "config.json").read_text())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


@pytest.mark.parametrize("case", CASES)
def test_older_names_stand_beside_the_new_ones(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    config: Any = AutoConfig.for_model(family, **json.loads(json.dumps(settings)))
    before, after = saved(tmp_path, config)
    assert {key: value for key, value in after.items() if key not in before} == settings
    read: Any = AutoConfig.from_pretrained(tmp_path)
    assert {**read.to_dict(), "_name_or_path": ""} == config.to_dict()


def test_a_text_model_inside_another_keeps_them_too(tmp_path: Path) -> None:
    text = saved(tmp_path, AutoConfig.for_model("mistral3"))[1]["text_config"]
    assert text["rope_theta"] == text["rope_parameters"]["rope_theta"]


def test_what_the_base_states_is_kept_where_it_changes_nothing(base: Path) -> None:
    stated = {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 20000, "torch_dtype": "float16"}
    (base / "config.json").write_text(json.dumps({**stated, "_name_or_path": "elsewhere", "hidden_size": 64}))
    config: Any = AutoConfig.from_pretrained(base)
    config.hidden_size = 128
    before, after = saved(base.parent / "final", config, base)
    assert (after["rotary_pct"], after["rotary_emb_base"], after["hidden_size"]) == (0.5, 20000, 128)
    assert not {"torch_dtype", "_name_or_path"} & (set(after) - set(before))


def test_a_scaling_that_was_trained_is_not_the_bases(base: Path) -> None:
    (base / "config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3}))
    config: Any = AutoConfig.from_pretrained(base)
    config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    _, after = saved(base.parent / "final", config, base)
    assert after["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert AutoConfig.from_pretrained(base.parent / "final").rope_parameters == config.rope_parameters
