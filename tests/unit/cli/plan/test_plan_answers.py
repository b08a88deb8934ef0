"""`plan --solve` and `plan --hardware any` as a user meets them."""

import json
import re

import pytest

from shardwise.catalog import probe
from tests.unit.cli.plan_json import flaws
from tests.unit.report.test_html import safe_page

LORA = ("--model", "llama-3.1-8b", "--method", "lora")
GPU = probe.FoundGpu(index=0, uuid="u", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 10**9, driver="1")


def test_what_was_solved_for_stands_first_and_the_plan_is_that_of_the_value(shardwise) -> None:
    said = shardwise("plan", *LORA, "--solve", "max_length", "--hardware", "1x RTX-4090")
    assert said.code == 0
    first, *_ = said.out.splitlines()
    said_so = r"largest data.max_length that fits: about ([\d,]+) \(1x RTX-4090, .* to spare\); with ([\d,]+):"
    matched = re.match(said_so, first)
    assert matched is not None, first
    value, above = (int(number.replace(",", "")) for number in matched.groups())
    assert f"sequences of at most {value} tokens a step" in said.out
    asked = (*LORA, "--hardware", "1x RTX-4090", "--set", "train.offload=none")
    again = shardwise("plan", *asked, "--max-length", value)
    assert (again.code, shardwise("plan", *asked, "--max-length", above).code) == (0, 1)


@pytest.mark.parametrize("key", ["max_length", "micro_batch_size", "lora.r", "gpus"])
def test_solved_is_what_the_schema_describes(shardwise, key) -> None:
    plan = shardwise.json("plan", *LORA, "--solve", key, "--hardware", "1x RTX-4090")
    assert flaws(plan) == []
    assert plan["solved"]["value"] in [one["value"] for one in plan["solved"]["tried"] if one["fits"]]


def test_where_no_value_fits_it_is_said(shardwise) -> None:
    asked = ("--model", "llama-3-70b", "--hardware", "1x L4", "--set", "train.offload=none")
    said = shardwise("plan", *asked, "--solve", "max_length", "--json")
    assert said.code == 1
    assert flaws(json.loads(said.out)) == []
    said = shardwise("plan", *asked, "--solve", "max_length")
    assert said.out.startswith("no data.max_length from 1 to 8192 fits: single needs ")


@pytest.mark.parametrize("solved", [(), ("--solve", "max_length")])
def test_what_only_a_larger_host_would_hold_is_advised_and_obeyed_where_it_is_stated(shardwise, solved) -> None:
    asked = ("plan", "--model", "llama-3.1-8b", "--method", "full", "--hardware", "1x RTX-4090")
    said = shardwise(*asked, *solved, "--json")
    assert said.code == 1
    advice = json.loads(said.out)["advice"][-1]
    assert "into the host's memory, more than 3 times what its GPUs have" in advice
    stated = advice.partition("; where it has as much, state ")[2]
    assert stated == "train.offload: parameters"
    assert stated in " ".join(shardwise(*asked, *solved).out.split())
    assert shardwise(*asked, *solved, "--set", stated.replace(": ", "=")).code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--solve", "maxlength"], "--solve maxlength: this is not solved for; did you mean max_length?"),
        (["--solve", "gpus", "--hardware", "any"], "--solve gpus: the hardware is open"),
        (["--solve", "gpus", "--hardware", "cpu:2"], "--solve gpus: CPU processes share one memory"),
        (["--hardware", "4x A900, 8x L40S"], "--hardware 4x A900, 8x L40S: hardware names the GPU 'A900'"),
    ],
)
def test_a_bad_question_is_bad_input(shardwise, arguments, sentence) -> None:
    hardware = [] if "--hardware" in arguments else ["--hardware", "1x L4"]
    assert sentence in shardwise.refused("plan", *LORA, *hardware, *arguments)


def test_any_hardware_is_an_answer_for_each_goal(shardwise, tmp_path) -> None:
    page = tmp_path / "plan.html"
    asked = (*LORA, "--hardware", "any", "--set", "goal=cheapest", "--set", "data.num_rows=1000")
    said = shardwise("plan", *asked, "--html", page)
    assert said.code == 0 and said.out.startswith("cheapest: ")
    assert all(f"; {goal}: " in said.out.replace("\n", " ") for goal in ("fastest", "smallest"))
    assert "prices of 20" in said.out
    assert " more are no better in price and time, or hardly; --json lists them" in said.out
    source = page.read_text(encoding="utf-8")
    words = safe_page(source).words
    assert "Typical: the median of providers' on-demand prices" in " ".join(words.split())
    assert all(name in words for name in ("Run", "Typical/h", "Lowest/h", "Peak memory", "smallest"))
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)<', source)[:3] == ["Hardware", "Run", "Cost"], "what a phone shows"


def test_the_table_of_hardware_has_a_row_for_each_and_fewer_columns_on_a_narrow_screen(shardwise, monkeypatch) -> None:
    named = "1x A10G, 4x RTX-4070-Ti, 1x T4"
    said = shardwise("plan", *LORA, "--hardware", named, "--set", "data.num_rows=1000", "--set", "goal=cheapest")
    assert said.code == 0
    lines = said.out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("hardware "))
    assert " ".join(lines[at].split()) == "hardware best for layout run cost typical/h lowest/h peak memory"
    words = r"1x A10G +cheapest, smallest +one process +[\d hmins]+ +"
    assert re.match(words + r"\$[\d.]+ +\$1\.01\* +\$1\.01 +[\d.]+ of 22", lines[at + 1])
    assert re.match(r"4x RTX-4070-Ti +fastest +\S.* +from \$0\.0\d+ +not known +\$0\.36 +[\d.]+ of 11", lines[at + 2])
    assert "1x T4: needs " in said.out
    said = shardwise("plan", *LORA, "--hardware", "1x A10G, 1x L4")
    assert re.search(r"^hardware +best for +layout +step +per 1M tokens +", said.out, re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "80")
    said = shardwise("plan", *LORA, "--hardware", "1x RTX-PRO-6000-Blackwell, 8x L40S")
    head = next(line for line in said.out.splitlines() if line.startswith("hardware "))
    assert "layout" not in head and "lowest/h" not in head
    assert head.endswith("peak memory")


def test_open_hardware_is_what_the_schema_describes_and_a_plan_that_train_can_be_given(shardwise, tmp_path) -> None:
    none = ("--set", "train.offload=none")
    asked = ("--hardware", "4x RTX-4090, 1x T4", *none, "--json", "--output", tmp_path / "plan.json")
    plan = json.loads(shardwise("plan", *LORA, *asked).out)
    assert flaws(plan) == []
    assert [(option["fits"], option["shown"]) for option in plan["hardware_options"]] == [(True, True), (False, False)]
    again = json.loads(shardwise("plan", tmp_path / "plan.json", "--json").out)
    assert again["hardware"] == plan["hardware"]
    assert again["candidates"][0]["layout"] == plan["candidates"][0]["layout"]


def test_without_hardware_the_question_is_which_where_nothing_can_be_trained_here(shardwise, monkeypatch) -> None:
    machine: list[probe.FoundGpu] = []
    monkeypatch.setattr(probe, "visible_gpus", lambda: machine)
    asked = ("plan", "--model", "tinyllama-1.1b", "--method", "lora")
    assert len(shardwise.json(*asked)["hardware_options"]) > 50
    here = shardwise.json(*asked, "--set", "data.path=rows.jsonl")
    assert "hardware_options" not in here and here["hardware"]["name"].startswith("cpu:")
    machine.append(GPU)
    here = shardwise.json(*asked)
    assert "hardware_options" not in here and here["hardware"]["name"] == "1x H100-SXM"


def test_training_needs_hardware_that_is_not_open(shardwise, tmp_path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: tinyllama-1.1b\ndata: {path: rows.jsonl}\nhardware: any\n")
    said = shardwise.refused("train", job)
    assert f"{job}:3: hardware is 'any', which leaves it open, which only `plan` answers; leave" in said
