"""Plans that are known by heart: `plan --json` says today what it said when somebody last looked.

`pytest tests/unit/cli/plan/test_golden_plans.py --update-golden` writes them anew, for the
difference to be reviewed.
"""

import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from shardwise.catalog import devices
from shardwise.spec.layout.execution import Execution
from shardwise.units import GIB
from tests.unit.cli.conftest import Shardwise
from tests.unit.cli.plan_json import SCHEMA, differences, flaws, validator, written
from tests.unit.house.tree import ROOT

GOLDEN = ROOT / "tests/golden"
MOST_BYTES = 60_000
LORA, LARGE, LONG = "method=lora", "train.global_batch_size=64", "data.max_length=4096"
RTX = ("hardware=4x RTX-6000-Ada", "data.num_rows=1024")
ATTENTION = "lora.target_modules=[q_proj, k_proj, v_proj, o_proj]"
SHARDED = ("layout={dp_shard: 64}", "data.max_length=2048")
CHEAPEST = ("goal=cheapest", "layout=fsdp", "train.max_steps=1000")
PRODUCT = "layout={pp: 2, dp_shard: 2, tp: 8, schedule: interleaved}"

#: Name of a file in tests/golden -> the model, and what is asked as `--set`.
ASKED: dict[str, tuple[str, ...]] = {
    "tinyllama-lora-4x-rtx-6000-ada": ("tinyllama-1.1b", LORA, *RTX, "train.global_batch_size=128"),
    "codellama-34b-lora-4x-rtx-6000-ada": ("codellama-34b", LORA, *RTX, LARGE),
    "llama-3.1-8b-full-4x-h100": ("llama-3.1-8b", "hardware=4x H100-SXM", LONG, LARGE),
    "llama-3.1-8b-lora-1x-rtx-4090": ("llama-3.1-8b", LORA, "hardware=1x RTX-4090"),
    "llama-3.1-8b-full-3x-l4-does-not-fit": ("llama-3.1-8b", "hardware=3x L4", "train.offload=none"),
    "llama-3.1-8b-full-3x-l4-offload": ("llama-3.1-8b", "hardware=3x L4"),
    "llama-2-70b-qlora-2x-rtx-3090": (*("llama-2-70b", "method=qlora", "hardware=2x RTX-3090", "data.max_length=512"),),
    "llama-3.1-405b-full-8x8-h200-fsdp": ("llama-3.1-405b", "hardware=8 x 8x H200", *SHARDED, LARGE),
    "mixtral-8x7b-lora-4x-a100": ("mixtral-8x7b", LORA, ATTENTION, "hardware=4x A100-80GB", "layout=fsdp"),
    "llama-3-70b-full-4x8-h100-product": ("llama-3-70b", "hardware=4 x 8x H100-SXM", PRODUCT, LONG, LARGE),
    "qwen3-8b-full-cheapest-2x8-a100": ("qwen3-8b", "hardware=2 x 8x A100-80GB", *CHEAPEST),
    "gemma-2-9b-full-fewest-8x-h100": ("gemma-2-9b", "hardware=8x H100-SXM", "goal=fewest-gpus"),
    "smollm2-135m-full-cpu-4": ("smollm2-135m", "hardware=cpu:4", "data.max_length=128", "data.num_rows=1000"),
}


@pytest.fixture(autouse=True)
def _on_four_cores_with_16_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cpu:4` is this machine's processors, and another's are others."""
    monkeypatch.setattr(devices, "usable_cores", lambda: 4)
    monkeypatch.setattr(devices, "available_memory", lambda: 16 * GIB)


def _asked(shardwise: Shardwise, name: str) -> str:
    model, *sets = ASKED[name]
    said = shardwise("plan", "--json", "--model", model, *(word for one in sets for word in ("--set", one)))
    assert said.err == ""
    assert said.code == (1 if name.endswith("does-not-fit") else 0)
    return said.out


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_what_it_was(shardwise: Shardwise, request: pytest.FixtureRequest, name: str) -> None:
    plan, golden = json.loads(_asked(shardwise, name)), GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden"):
        golden.write_text(written(plan) + "\n", encoding="utf-8")
    assert golden.stat().st_size < MOST_BYTES, "a golden file is for people to review; ask for less"
    changed = list(differences(plan, json.loads(golden.read_text(encoding="utf-8"))))
    assert changed == [], f"{len(changed)} differences; if meant: pytest {Path(__file__).name} --update-golden"


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_is_what_the_schema_describes(name: str) -> None:
    plan = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert flaws(plan) == []
    later = {**plan, "key_of_a_later_version": 1}
    assert validator().is_valid(later)
    assert flaws(later)


def test_every_golden_file_is_asked_for_and_the_schema_is_one() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(ASKED)
    validator().check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))


@pytest.mark.parametrize("key", ["gradient_checkpointing", "offload", "precision", "optimizer", "loss"])
def test_the_words_of_the_schema_are_those_of_the_program(key: str) -> None:
    described = validator().schema["$defs"]["candidate"]["properties"][key]["enum"]
    assert described == list(get_args(get_type_hints(Execution)[key]))
