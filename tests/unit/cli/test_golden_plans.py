"""Plans that are known by heart: `plan --json` says today what it said when somebody last looked.

`pytest tests/unit/cli/test_golden_plans.py --update-golden` writes them anew, for the difference to be reviewed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from shardwise.catalog import processors
from shardwise.spec.execution import Execution
from shardwise.units import GIB
from tests.unit.cli.conftest import Shardwise
from tests.unit.cli.plan_json import ROOT, SCHEMA, differences, flaws, validator, written

GOLDEN = ROOT / "tests/golden"
MOST_BYTES = 60_000

#: Name of a file in tests/golden -> what is asked, as job file keys; whether it fits.
ASKED: dict[str, tuple[dict[str, str], bool]] = {
    "tinyllama-lora-4x-rtx-6000-ada": (
        {
            "model": "tinyllama-1.1b",
            "method": "lora",
            "hardware": "4x RTX-6000-Ada",
            "train.global_batch_size": "128",
            "data.num_rows": "1024",
        },
        True,
    ),
    "codellama-34b-lora-4x-rtx-6000-ada": (
        {
            "model": "codellama-34b",
            "method": "lora",
            "hardware": "4x RTX-6000-Ada",
            "train.global_batch_size": "64",
            "data.num_rows": "1024",
        },
        True,
    ),
    "llama-3.1-8b-full-4x-h100": (
        {
            "model": "llama-3.1-8b",
            "hardware": "4x H100-SXM",
            "data.max_length": "4096",
            "train.global_batch_size": "64",
        },
        True,
    ),
    "llama-3.1-8b-lora-1x-rtx-4090": (
        {"model": "llama-3.1-8b", "method": "lora", "hardware": "1x RTX-4090"},
        True,
    ),
    "llama-3.1-8b-full-3x-l4-does-not-fit": (
        {"model": "llama-3.1-8b", "hardware": "3x L4", "train.offload": "none"},
        False,
    ),
    "llama-3.1-8b-full-3x-l4-offload": ({"model": "llama-3.1-8b", "hardware": "3x L4"}, True),
    "llama-2-70b-qlora-2x-rtx-3090": (
        {"model": "llama-2-70b", "method": "qlora", "hardware": "2x RTX-3090", "data.max_length": "512"},
        True,
    ),
    "llama-3.1-405b-full-8x8-h200-fsdp": (
        {
            "model": "llama-3.1-405b",
            "hardware": "8 x 8x H200",
            "layout": "{dp_shard: 64}",
            "data.max_length": "2048",
            "train.global_batch_size": "64",
        },
        True,
    ),
    "mixtral-8x7b-lora-4x-a100": (
        {
            "model": "mixtral-8x7b",
            "method": "lora",
            "lora.target_modules": "[q_proj, k_proj, v_proj, o_proj]",
            "hardware": "4x A100-80GB",
            "layout": "fsdp",
        },
        True,
    ),
    "llama-3-70b-full-4x8-h100-product": (
        {
            "model": "llama-3-70b",
            "hardware": "4 x 8x H100-SXM",
            "layout": "{pp: 2, dp_shard: 2, tp: 8, schedule: interleaved}",
            "data.max_length": "4096",
            "train.global_batch_size": "64",
        },
        True,
    ),
    "qwen3-8b-full-cheapest-2x8-a100": (
        {
            "model": "qwen3-8b",
            "hardware": "2 x 8x A100-80GB",
            "goal": "cheapest",
            "layout": "fsdp",
            "train.max_steps": "1000",
        },
        True,
    ),
    "gemma-2-9b-full-fewest-8x-h100": (
        {"model": "gemma-2-9b", "hardware": "8x H100-SXM", "goal": "fewest-gpus"},
        True,
    ),
    "smollm2-135m-full-cpu-4": (
        {"model": "smollm2-135m", "hardware": "cpu:4", "data.max_length": "128", "data.num_rows": "1000"},
        True,
    ),
}


@pytest.fixture(autouse=True)
def _on_four_cores_with_16_gib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`cpu:4` is this machine's processors, and another's are others."""
    monkeypatch.setattr(processors, "usable_cores", lambda: 4)
    monkeypatch.setattr(processors, "available_memory", lambda: 16 * GIB)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path))


def _asked(shardwise: Shardwise, name: str) -> str:
    keys, fits = ASKED[name]
    said = shardwise("plan", "--json", *(part for key, value in keys.items() for part in ("--set", f"{key}={value}")))
    assert said.err == ""
    assert said.code == (0 if fits else 1)
    return said.out


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_what_it_was(shardwise: Shardwise, request: pytest.FixtureRequest, name: str) -> None:
    plan, golden = json.loads(_asked(shardwise, name)), GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden"):
        golden.write_text(written(plan) + "\n", encoding="utf-8")
    assert golden.stat().st_size < MOST_BYTES, "a golden file is for people to review; ask for less"
    changed = list(differences(plan, json.loads(golden.read_text(encoding="utf-8"))))
    assert changed == [], (
        f"{len(changed)} differences; where they are meant: pytest {Path(__file__).name} --update-golden"
    )


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_what_the_schema_describes(name: str) -> None:
    plan = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert flaws(plan) == []


def test_every_golden_file_is_asked_for() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(ASKED)


def test_the_schema_is_a_schema_and_leaves_room_for_keys_to_come() -> None:
    validator().check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))
    plan = json.loads((GOLDEN / "smollm2-135m-full-cpu-4.json").read_text(encoding="utf-8"))
    later = {**plan, "key_of_a_later_version": 1}
    assert validator().is_valid(later)
    assert flaws(later)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: plan.pop("hardware"),
        lambda plan: plan.update(version=2),
        lambda plan: plan["candidates"][0]["memory"].update(peak_bytes=-1),
        lambda plan: plan["candidates"][0]["memory"]["ranks"][0]["parts"].update(weights=0.5),
        lambda plan: plan["candidates"][0]["time"].update(mfu=1.5),
        lambda plan: plan["candidates"][0].update(reasons=[]),
        lambda plan: plan["rejected"][0].update(reason="no"),
    ],
)
def test_the_schema_refuses_what_no_plan_says(spoil) -> None:
    plan = json.loads((GOLDEN / "smollm2-135m-full-cpu-4.json").read_text(encoding="utf-8"))
    assert validator().is_valid(plan)
    spoil(plan)
    assert not validator().is_valid(plan)


@pytest.mark.parametrize("key", ["gradient_checkpointing", "offload", "precision", "optimizer", "loss"])
def test_the_words_of_the_schema_are_those_of_the_program(key: str) -> None:
    described = validator().schema["$defs"]["candidate"]["properties"][key]["enum"]
    assert described == list(get_args(get_type_hints(Execution)[key]))


def test_differences_are_seen_beyond_rounding_and_not_within() -> None:
    old = {"a": [1, 2.0, "x"], "b": None}
    assert list(differences({"a": [1, 2.0 * (1 + 1e-12), "x"], "b": None}, old)) == []
    assert list(differences({"a": [1, 2.0 * (1 + 1e-8), "x"], "b": None}, old)) == ["$.a[1] is 2.00000002, and was 2.0"]
    assert list(differences({"a": [1.0, 2.0, "x"], "b": None}, old)) == ["$.a[0] is 1.0, and was 1"]
    assert list(differences({"a": [1, 2.0], "c": 0}, old)) == [
        "$.a is [1, 2.0], and was [1, 2.0, 'x']",
        "$.b is gone",
        "$.c is new",
    ]


def test_golden_files_are_not_rewritten_in_ci() -> None:
    command = [sys.executable, "-m", "pytest", "--update-golden", "--collect-only", __file__]
    run = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "CI": "true"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "nobody to review" in run.stderr
