"""Damaged plans given to `train`: exit 2, a sentence for each mistake, and nothing is started."""

import copy
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardwise import api
from shardwise.errors import InputError
from shardwise.spec.plan.file import plan_from_json, read_plan
from tests.unit.cli.mistakes.odd import spoiled

Plain = dict[str, Any]

#: What Python and pydantic say, and no user shall read.
THEIR_WORDS = re.compile(
    r"object is not|NoneType|should (have|be)|[Ii]nput |valid (string|integer|number)|takes|argument|out of range|errno"
)
#: Other values: of each kind that JSON has, and what Python and pydantic stumble over.
SPOILERS: list[Any] = [None, "", "x\ud800", "7", -1, 2.5, 10**400, float("inf"), True, [], {}, [[]], {"a": {"b": []}}]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder = tmp_path_factory.mktemp("plan")
    job = "model: tinyllama-1.1b\nhardware: 4x RTX-6000-Ada\ndata: {path: rows.jsonl}\ntrain: {global_batch_size: 16}\n"
    (folder / "job.yaml").write_text(f"{job}output_dir: {folder / 'run'}\n")
    return json.loads(json.dumps(api.plan(folder / "job.yaml").to_json()))


def best(plan: Plain) -> Plain:
    return plan["candidates"][plan["chosen"]]


def top(**changes: Any) -> Callable[[Plain], object]:
    return lambda plan: plan.update(changes)


def chosen(**changes: Any) -> Callable[[Plain], object]:
    return lambda plan: best(plan).update(changes)


def layout(**changes: Any) -> Callable[[Plain], object]:
    return lambda plan: best(plan)["layout"].update(changes)


#: A mistake -> words of the sentence.
BAD: list[tuple[Callable[[Plain], object], str]] = [
    (top(chosen=99), "chosen is 99; expected a place among the"),
    (top(candidates=[]), "chosen is 0; expected null"),
    (top(chosen="0"), "chosen is '0'; expected a whole number without quotes"),
    (lambda plan: best(plan)["memory"].update(peak_bytes="many"), "memory.peak_bytes is 'many'; expected a whole"),
    (top(chosen=-1), "chosen is -1; expected at least 0"),
    (top(chosen=None), "this plan chose nothing"),
    (lambda plan: plan.pop("chosen"), "the key 'chosen' is missing"),
    (top(job={}), "the key 'model' is missing"),
    (top(hardware="x"), "hardware is 'x'; expected keys below it"),
    (top(hardware={"name": "cpu:2", "num_gpus": 0}), "hardware.num_gpus is 0"),
    (lambda plan: plan.pop("model"), "the key 'model' is missing\n"),
    (top(rejected=None), "rejected is None; expected a list"),
    (lambda plan: plan.pop("version"), "the key 'version' is missing; expected 1"),
    (top(version=2), "version is 2; expected 1"),
    (chosen(fits=False), "fits is false; expected that what is chosen fits"),
    (chosen(fits="yes"), "fits is 'yes'; expected true or false"),
    (chosen(gradient_accumulation_steps=77), "gradient_accumulation_steps is 77; expected"),
    (chosen(precision="int3"), "precision is 'int3'; expected mixed, bf16, fp16 or fp32"),
    (chosen(optimiser="sgd"), "optimiser'; did you mean 'optimizer'"),
    (chosen(layout=None), "layout is None; expected keys below it"),
    (lambda plan: best(plan).pop("offload"), "the key 'candidates.0.offload' is missing"),
    (layout(dp_shard=0), "layout.dp_shard is 0"),
    (layout(dp_shard=3, ep=2), "ep = 2 deals experts among ranks"),
    (layout(dp_replicate=64), "expected hardware.num_gpus, 4, at most"),
    (layout(schedule="slow"), "layout.schedule is 'slow'; expected 1f1b"),
    (lambda plan: best(plan)["time"].update(mfu=[]), "time.mfu is []; expected a number"),
]


@pytest.mark.parametrize(("damage", "words"), BAD, ids=[re.sub(r"\W+", "-", words)[:40] for _, words in BAD])
def test_a_damaged_plan_is_refused_with_a_sentence(shardwise, good, tmp_path, damage, words) -> None:
    plan, path = copy.deepcopy(good), tmp_path / "plan.json"
    damage(plan)
    path.write_text(json.dumps(plan))
    said = shardwise.refused("train", path)
    assert words in said
    assert f"{path}: " in said or f"{path}:" in said
    assert not THEIR_WORDS.search(said)
    assert not Path(good["job"]["output_dir"]).exists()


def test_several_mistakes_are_found_at_once(shardwise, good, tmp_path) -> None:
    plan, path = copy.deepcopy(good), tmp_path / "plan.json"
    plan["job"]["hardware"] = plan["hardware"]["name"]
    best(plan).update(gradient_accumulation_steps=77, fits=False)
    path.write_text(json.dumps(plan))
    assert len(shardwise("train", path).err.strip().splitlines()) == 2


@pytest.mark.parametrize("text", ["", "{", '{"version": 1, "chosen": NaN}', "[" * 100_000])
def test_what_is_no_json_is_a_sentence(tmp_path, text) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"plan\.json.*is not JSON"):
        read_plan(path)


def test_keys_that_a_later_program_added_are_passed_over_where_nothing_obeys_them(good) -> None:
    plan = copy.deepcopy(good)
    plan["carbon"] = 1
    best(plan)["time"]["watts"] = 2.0
    best(plan)["memory"]["swap_bytes"] = 0
    plan["hardware"]["region"] = "north"
    assert plan_from_json(plan).best == plan_from_json(good).best


def test_no_spoiled_plan_raises_anything_but_sentences(good) -> None:
    dice, refused = random.Random(20_26), 0
    small = {**good, "candidates": good["candidates"][:1], "rejected": good["rejected"][:1]}
    for _ in range(1500):
        plan = spoiled(small, dice, odd=SPOILERS)
        try:
            plan_from_json(plan)
        except InputError as error:
            refused += 1
            assert not THEIR_WORDS.search(str(error)), str(error)
    assert refused > 300
