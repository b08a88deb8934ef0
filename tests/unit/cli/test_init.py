"""`shardwise init`: five questions to a job file, and recipes whose claims are planned."""

import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from shardwise.api import plan, recipes
from shardwise.catalog.gpus import parse_hardware
from shardwise.spec.job.file import read_job
from tests.unit.cli.conftest import Shardwise

#: Recipes whose models the catalogue has not; blocks of these are measured, which takes half a minute.
HYBRID = {"hybrid-24gb": ("transformers.models.qwen3_5.configuration_qwen3_5", "Qwen3_5Config")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.rare) if name in HYBRID else name for name in recipes()]
)
def test_a_recipe_is_planned_as_it_claims(name: str, tmp_path: Path, shardwise: Shardwise) -> None:
    file, models = tmp_path / "job.yaml", []
    if name in HYBRID:  # transformers' defaults are those of Qwen3.5-9B
        module, config = HYBRID[name]
        getattr(importlib.import_module(module), config)(dtype="bfloat16").save_pretrained(tmp_path / "model")
        models = [f"model={tmp_path / 'model'}"]
    assert shardwise("init", file, "--recipe", name).code == 0
    claim = re.search(r"^# Planned: (.+), fits\.$", file.read_text(), re.MULTILINE)
    made = plan(file, overrides=["data.num_rows=20000", *models])
    assert made.best is not None and claim is not None
    assert made.best.execution.layout.strategy == claim[1]
    assert (made.best.not_trained, made.best.execution.offload) == ((), "none")
    assert made.chance is None or made.chance.in_100 >= 95


def test_recipes_are_listed_and_another_name_is_refused(tmp_path: Path, shardwise: Shardwise) -> None:
    listed = shardwise("init", "--recipe", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == [*recipes()] and len(listed) >= 13
    said = shardwise("init", tmp_path / "job.yaml", "--recipe", "moon")
    assert (said.code, (tmp_path / "job.yaml").exists()) == (2, False)
    assert "--recipe moon: there is no such recipe; there are: 32b-8gpus, " in said.err


@pytest.mark.parametrize(("kind", "hardware"), [("cpu", "any"), ("cuda", None)])
def test_where_there_is_no_gpu_what_can_be_rented_is_compared(kind, hardware, tmp_path, shardwise, monkeypatch) -> None:
    here = replace(parse_hardware("1x L4").gpu, kind=kind)
    cluster = replace(parse_hardware("1x L4"), node=replace(parse_hardware("1x L4").node, gpu=here))
    monkeypatch.setattr("shardwise.api.plans.planning.this_machine", lambda: cluster)
    assert shardwise("init", tmp_path / "job.yaml", "--yes").code == 0
    assert read_job(tmp_path / "job.yaml").hardware == hardware


def test_options_answer_and_comments_stay(tmp_path: Path, shardwise: Shardwise) -> None:
    file = tmp_path / "job.yaml"
    options = (
        "--model",
        "llama-3.2-1b",
        "--data",
        "my chats.jsonl",
        "--hardware",
        "2 x 8x H100-SXM",
        "--goal",
        "cheapest",
    )
    assert shardwise("init", file, *options, "--yes").out == f"wrote {file}; next: shardwise plan {file}\n"
    job, text = read_job(file), file.read_text()
    assert (job.model, job.hardware, job.goal) == ("llama-3.2-1b", "2 x 8x H100-SXM", "cheapest")
    assert job.data.path[0].path == "my chats.jsonl"
    assert "model: llama-3.2-1b   # hub id" in text and "Planned" not in text
    again = shardwise("init", file, "--yes")
    assert (again.code, "is there already; name another file" in again.err) == (2, True)


def test_questions_are_answered_on_a_terminal(tmp_path: Path, shardwise: Shardwise, monkeypatch) -> None:
    answers = iter(["smollm2-135m", "rows.csv", "this", "fastest", "runs/mine"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(answers))
    file = tmp_path / "job.yaml"
    assert shardwise("init", file).code == 0
    job = read_job(file)
    assert (job.model, job.hardware, job.output_dir) == ("smollm2-135m", None, "runs/mine")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "init asks on a terminal, and there is none; state --model, --data, --hardware, --goal and --output-dir"),
        (("--yes", "--hardware", "3x RTX-9999"), "RTX-9999"),
        (("--yes", "--goal", "best"), "goal"),
    ],
)
def test_what_cannot_be_asked_or_read_is_said(options, words, tmp_path, shardwise) -> None:
    said = shardwise("init", tmp_path / "job.yaml", *options)
    assert (said.code, said.out, (tmp_path / "job.yaml").exists()) == (2, "", False)
    assert words in said.err
