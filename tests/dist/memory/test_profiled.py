"""Forecasts by profiles beside what real processes measured, of families that no rule knows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accuracy.grid.cells import COMMON, Cell, Measured, job_of, planned
from accuracy.grid.measure import _rows, _run, model_folder
from accuracy.grid.rows import STEPS
from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import config_of
from shardwise.launch.run_folder import known_data
from shardwise.models.built.shape import built_shape, shape_of
from shardwise.plan import open_executions
from shardwise.plan.memory.forecast import forecast_memory
from shardwise.plan.search.question import ask, work_on
from shardwise.spec.job.file import parse_job
from shardwise.spec.job.strict import from_plain
from shardwise.spec.model.profile import ModelProfile
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.splits import splits
from shardwise.train.rehearsing import command
from shardwise.train.rehearsing.profile import ways_to_run
from tests.dist.cells import prepare_cell
from tests.dist.tiny import tiny_config
from tests.dist.worlds import skip_without

HALF = {"num_hidden_layers": 4, "head_dim": 32}
LINEAR = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}
LINEAR |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
SHARED = {"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 2048, "num_kv_shared_layers": 2}
SHARED |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
#: Families without rules, and their keys beside `COMMON`.
PROFILED: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**HALF, **LINEAR},
    "mamba2": {"num_heads": 16, "head_dim": 32, "state_size": 16, "chunk_size": 64, "n_groups": 1},
    "openai-gpt": {"n_embd": 256, "n_layer": 4, "n_head": 8, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
    "apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "diffllama": HALF,
    "granite_swa": HALF,
    "bitnet": {},
    "gemma3n_text": {**HALF, **SHARED},
    "gemma4_text": {**HALF, **SHARED, "global_head_dim": 64, "sliding_window": 64, "use_double_wide_mlp": True},
    "falcon_h1": {**HALF, "mamba_d_ssm": 512, "mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 16},
    "olmo_hybrid": {**HALF, **LINEAR},
    "bamba": {**HALF, "mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 16},
    "minimax_m2": {**HALF, "num_local_experts": 8, "num_experts_per_tok": 2},
    "nanochat": HALF,
    "recurrent_gemma": {**HALF, "lru_width": 256, "attention_window_size": 64},
}


def config_of_family(family: str) -> dict[str, Any]:
    """Its config.json."""
    return {**COMMON, "model_type": family, **PROFILED[family]}


def with_profiles(shape: ModelShape, job: Any, cluster: Any) -> ModelShape:
    """A shape with the profiles of a job, which this process measures."""
    question = {"job": job.to_json(), "shape": shape.to_json(), "config": config_of(job.model), "cuda": False}
    found = command.answer_profiles(
        question | {"executions": [one.to_json() for one in open_executions(job, shape, cluster)]}
    )
    assert "refused" not in found, found
    return replace(shape, profiles=tuple(from_plain(ModelProfile, one) for one in found["profiles"]))


def compared(family: str, layout: str, root: Path, **changes: Any) -> list[tuple[bool, float]]:
    """Of each kind of rank: whether it holds what is forecast, and how far off its peak is."""
    usual = {"method": "full", "batch": 2, "length": 128, "recompute": "none", "precision": "fp32", "rows": "whole"}
    cell = Cell(family="llama", layout=layout, **(usual | changes))
    data = root / "rows.jsonl"
    job = job_of(cell, model=str(model_folder(root, json.dumps(config_of_family(family)))), data=str(data))
    if built_shape(config_of_family(family), file="-").eager_attention:
        job = job.model_copy(update={"train": job.train.model_copy(update={"attn_implementation": "eager"})})
    with data.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(cell, STEPS * job.train.global_batch_size))
    run, cluster = prepare_cell(job, root / "run"), cell.hardware()
    _, lengths = known_data(run)
    assert lengths is not None
    shape = with_profiles(shape_of(job.model), job, cluster)
    assert shape.counted and shape.profiles
    execution = planned(cell, job, shape=shape, lengths=lengths).execution
    seen = {"longest": lengths.longest, "mean": lengths.mean, "document": lengths.document}
    ranks = [Measured(**seen, rank=rank, **taken) for rank, taken in enumerate(_run(cell, run, execution))]
    work = work_on(ask(job, model=shape, cluster=cluster, lengths=lengths), cluster, execution)
    assert work.profile is not None
    found: list[tuple[bool, float]] = []
    for alike in forecast_memory(work).ranks:
        best = min((one for one in ranks if one.rank in alike.ranks), key=lambda one: one.unseen)
        exact = (alike.parts["weights"], alike.parts["optimizer"]) == (best.weights, best.optimizer)
        found.append((exact, (alike.peak_bytes - alike.parts.get("context", 0)) / best.peak - 1))
    return found


RUNS = [(family, layout, {}, 0.08) for family in PROFILED for layout in ("single", "ddp", "fsdp", "1f1b")]
OTHERS = ({"precision": "mixed"}, {"recompute": "full"}, {"recompute": "selective"}, {"method": "lora"})
RUNS += [("granite_swa", "single", changes, 0.05) for changes in OTHERS]
#: Under tp a rank has delta rules, or the stream, whole, and half of the experts.
SLICED = ("qwen3_5_text", "gemma3n_text", "gemma4_text", "minimax_m2")
RUNS += [(family, "tp", {}, 0.08) for family in SLICED]
RUNS += [("minimax_m2", layout, {"precision": "mixed"}, 0.05) for layout in ("single", "tp")]  # copies of stacks
RUNS += [("nanochat", layout, {"method": "lora"}, 0.05) for layout in ("single", "tp")]  # a head that caps
SENDING = ("gemma3n_text", "gemma4_text")  # more than the stream, between stages
RUNS += [(family, "interleaved", {"recompute": kind}, 0.08) for family in SENDING for kind in ("none", "full")]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout", "changes", "within"), RUNS)
def test_what_is_measured_is_what_profiles_forecast(family, layout, changes, within, tmp_path) -> None:
    skip_without(family)
    if layout == "1f1b" and not splits(built_shape(config_of_family(family), file="-"), "stages"):
        pytest.skip(f"{family} is not cut in stages")
    found = compared(family, layout, tmp_path, **changes)
    assert all(exact for exact, _ in found)
    assert max(abs(error) for _, error in found) <= within


DEEP = {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "intermediate_size": 64}
DEEP |= {"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2, "activation_sparsity_pattern": [0.0] * 10}


@pytest.mark.parametrize(
    ("family", "changes", "failed"), [("nemotron_h", {}, 0), ("gemma3n_text", DEEP, 2), ("openai-gpt", {}, 1)]
)
def test_blocks_are_measured_without_most_others(family, changes, failed, monkeypatch) -> None:
    """Nemotron-H reads of each block what it is; Gemma 3n's read keys of the last before them; GPT
    has fewer positions than rows may have tokens."""
    ways = ways_to_run()
    monkeypatch.setattr(command, "ways_to_run", lambda: ways)
    assert "refused" not in command.answer_profiles(_question(family, **changes))
    assert ways == ways_to_run()[failed:]


def _question(family: str, **changes: Any) -> dict[str, Any]:
    config = tiny_config(family, **changes).to_dict()
    shape, job = built_shape(config, file="-"), parse_job("model: x\nmethod: lora")
    executions = [one.to_json() for one in open_executions(job, shape, parse_hardware("8x H100-SXM"))]
    asked = {"job": job.to_json(), "shape": shape.to_json(), "config": config, "cuda": True}
    return asked | {"executions": executions}
