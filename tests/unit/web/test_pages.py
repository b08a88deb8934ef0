"""Pages answer as `plan --json`, addresses hold questions, errors stand at their fields."""

import json
import random
import re
import shlex
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import pytest

from shardwise import api
from shardwise.launch.lock import locked
from shardwise.units import format_bytes, format_count, format_seconds
from shardwise.web.question import FIELDS
from tests.marks import first
from tests.unit.cli.conftest import Shardwise
from tests.unit.report.runs import RunMaker, make_job
from tests.unit.web.conftest import CONFIG
from tests.unit.web.served import Said, Served

USUAL = {"model": "tinyllama-1.1b", "method": "lora", "hardware": "2x RTX-4090", "length": "1024", "batch": "8"}
MODELS = ("tinyllama-1.1b", "llama-3.1-8b", "qwen3-8b", "smollm2-135m", "mixtral-8x7b", "gemma-2-9b", "codellama-34b")
HARDWARE = ("1x RTX-4090", "4x RTX-6000-Ada", "8x H100-SXM", "2 x 8x A100-80GB", "any", "2x L4, 1x L40S", "3x L4")


def random_question(seed: int) -> dict[str, str]:
    chosen = random.Random(seed)
    found = {"model": chosen.choice(MODELS), "method": chosen.choice(("full", "lora", "qlora"))}
    found |= {"hardware": chosen.choice(HARDWARE), "length": str(chosen.choice((256, 1000, 2048, 8192)))}
    found |= {"batch": str(chosen.choice((1, 8, 24, 100))), "rank": str(chosen.choice((4, 16, 64)))}
    found |= {"rows": chosen.choice(("", "5000")), "goal": chosen.choice(("fastest", "cheapest", "fewest-gpus"))}
    found |= {"layout": chosen.choice(("auto", "auto", "fsdp", "ddp", "pp", "tp"))}
    return found if chosen.random() < 0.8 else {name: found[name] for name in ("model", "method", "hardware")}


def copied(page: Said, name: str = "copied-1") -> str:
    found = re.search(rf'id="{name}"[^>]*>(.*?)</(?:pre|p)>', page.text, flags=re.DOTALL)
    assert found, page.text[:2000]
    return unescape(found[1])


def wrong(page: Said, name: str) -> str:
    return copied(page, f"wrong-{name}")


def answered(served: Served, shardwise: Shardwise, **question: str) -> tuple[Said, Any, list[str]]:
    """The page, its plan, which is that of the command that is copied from it, and this command."""
    page, said = served.get("/", copy="command", **question), json.loads(served.get("/plan.json", **question).text)
    command = shlex.split(copied(page))
    assert command[:2] == ["shardwise", "plan"]
    assert said == json.loads(shardwise(*command[1:], "--json").out)
    return page, said, command


@pytest.mark.parametrize("seed", first(3, range(30)))
def test_answers_are_those_of_the_command_line_field_by_field(served: Served, shardwise: Shardwise, seed: int) -> None:
    question = random_question(seed)
    said = served.get("/plan.json", **question)
    if said.status == 400:  # the same sentences
        errors = json.loads(said.text)
        sentences = [one for some in (*errors["errors"].values(), errors["general"]) for one in some]
        assert served.get("/", **question).status == 400
        keys = {field.name: field.key for field in FIELDS}
        options = [f"--set={keys[name]}={text}" for name, text in question.items() if text and name != "rank"]
        printed = shardwise("plan", *options)
        assert printed.code == 2
        assert all(sentence in printed.err for sentence in sentences), (sentences, printed.err)
        return
    page, said, command = answered(served, shardwise, **question)
    assert (said["chosen"] is None) == (shardwise(*command[1:]).code == 1) == ("Nothing fits" in page.text)


@pytest.mark.parametrize("changed", [{}, {"model": "llama-3.1-70b", "method": "full"}, {"hardware": "any"}])
def test_a_page_has_what_is_chosen_why_memory_time_cost_and_remedies(served: Served, changed: dict[str, str]) -> None:
    question = {**USUAL, "rows": "5000", **changed}
    plan, text = json.loads(served.get("/plan.json", **question).text), served.get("/", **question).text
    assert re.search(r'id="verdict"[^>]*><strong>(Fits: |Nothing fits)[^<]*\.</strong>', text)
    assert re.search(r"<span>(On [^<]*, r|R)ows up to 1,024 tokens.</span>", text), "always beside the verdict"
    assert "<h1>" not in text, "the verdict is said once"
    chosen, remedies = plan["chosen"], re.findall(r'id="remedy-\d"[^>]*>([^<]*)<', text)
    assert remedies == (["Try QLoRA", "More of these GPUs", "Which GPUs?"] if chosen is None else [])
    page = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text)))
    ranks = [rank for one in plan["candidates"] for rank in one["memory"]["ranks"]]
    parts = [name for name in ranks[0]["parts"] if any(rank["parts"][name] for rank in ranks)]
    for one in plan["candidates"]:
        assert one["strategy"] in page
        largest = max(one["memory"]["ranks"], key=lambda rank: rank["peak_bytes"])
        sizes = [format_bytes(largest["parts"][name]) for name in parts] + [format_bytes(largest["peak_bytes"])]
        assert " ".join(sizes) in page, "a row of the table below the chart"
        for written in (format_seconds(one["time"]["step_seconds"]), format_count(one["time"]["tokens_per_second"])):
            assert written in page
        assert f"${one['cost']['usd']:,.2f}" in page
    assert ("One step of" in page) == (plan["chosen"] is not None)
    reasons = [] if plan["chosen"] is None else plan["candidates"][plan["chosen"]]["reasons"]
    for sentence in (*reasons, *plan.get("advice", ())):
        assert sentence in page
    assert all(one["hardware"] in page for one in plan.get("hardware_options", ())[:3])
    words = ("Memory of one GPU", "Candidates", "One step of" if plan["chosen"] is not None else "What would fit")
    assert all(word in page for word in words)
    assert ("<h2>Hardware</h2><p>" in text) == ("hardware_options" in plan)


@pytest.mark.parametrize("key", ["max_length", "gpus"])
def test_what_fits_is_found_as_the_command_line_finds_it(served: Served, shardwise: Shardwise, key: str) -> None:
    page, said, command = answered(served, shardwise, **USUAL, solve=key)
    assert command[-2:] == ["--solve", key]
    solved = said["solved"]
    assert "<h2>Solved</h2>" in page.text
    job = copied(served.get("/", **USUAL, solve=key))
    found = {"max_length": f"max_length: {solved['value']}\n", "gpus": f"hardware: {solved['written']}\n"}
    assert found[key] in job, "the file has the value that was found"
    refused = served.get("/", **{**USUAL, "hardware": "any"}, solve=key)
    assert "the hardware is open, and so there is no one answer" in wrong(refused, "solve")
    page, _, command = answered(served, shardwise, **USUAL | {"for": "trl"})
    assert command[-2:] == ["--for", "trl"] and "for trl 1.16.0" in page.text
    assert "layout tp is not exported to trl" in wrong(served.get("/", **USUAL | {"for": "trl", "layout": "tp"}), "for")


def test_what_is_copied_plans_the_same(served: Served, shardwise: Shardwise, tmp_path: Any) -> None:
    planned, job = json.loads(served.get("/plan.json", **USUAL).text), tmp_path / "job.yaml"
    job.write_text(copied(served.get("/", copy="job.yaml", **USUAL)))
    assert json.loads(shardwise("plan", job, "--json").out) == planned
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(planned))
    for target in api.TARGETS:
        page = served.get("/", copy=target, **USUAL)
        printed = shardwise("export", plan, "--to", target, "--output", tmp_path / target)
        if printed.code == 2:
            assert printed.err.removeprefix("error: ").strip().replace(str(plan), "plan.json") in unescape(page.text)
            continue
        texts = [unescape(text) for text in re.findall(r"<pre id[^>]*>(.*?)</pre>", page.text, flags=re.DOTALL)]
        written = [path.read_text() for path in sorted((tmp_path / target).iterdir())]
        assert sorted(text.replace(str(plan), "plan.json") for text in written) == sorted(texts)


def test_the_address_holds_the_question(served: Served) -> None:
    page = served.get("/", **USUAL, rank="64", rows="777", goal="cheapest", layout="fsdp", hub="1")
    values = ('value="tinyllama-1.1b"', 'value="1024"', 'value="64"', 'value="777"', 'name="hub" value="1" checked')
    for text in (*values, "<option selected>lora", "<option selected>cheapest", "<option selected>fsdp"):
        assert text in page.text
    assert 'value="llama-3.1-8b"' in served.get("/").text, "the usual question"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("length", "abc", "data.max_length is 'abc'; expected a whole number"),
        ("length", "0", "data.max_length is 0; expected at least 1"),
        ("length", "1.5", "data.max_length is 1.5; expected a whole number"),
        ("batch", "-3", "train.global_batch_size is -3; expected at least 1"),
        ("method", "lorra", "method is 'lorra'; expected full, lora or qlora; did you mean 'lora'?"),
        ("goal", "nicest", "goal is 'nicest'; expected fastest, cheapest or fewest-gpus"),
        ("hardware", "4x RTX-9999", "hardware names the GPU 'RTX-9999', which is not in the catalogue"),
        ("model", "nothing-like-it", "no model of the catalogue and no folder or config.json below the served folder"),
        ("batch", "1" * 301, "train.global_batch_size has 301 letters; expected 300 at most"),
    ],
)
def test_an_error_is_the_sentence_of_the_command_line_beside_its_field(served, name, text, sentence) -> None:
    page = served.get("/", **{**USUAL, name: text})
    assert page.status == 400
    if len(text) > 300:
        assert sentence in unescape(page.text)
        return
    assert sentence in wrong(page, name)
    assert [field.name for field in FIELDS if wrong(page, field.name)] == [name]
    assert f'id="{name}" name="{name}" aria-describedby="wrong-{name}" aria-invalid="true"' in page.text


def test_a_model_is_dropped_or_lies_below_the_folder(served: Served) -> None:
    kept = served.ask("POST", "/config", body=json.dumps(CONFIG).encode(), headers={"Origin": served.url})
    assert kept.status == 200
    name = json.loads(kept.text)["model"]
    assert re.fullmatch(r"config\.json:[0-9a-f]{16}", name)
    dropped = json.loads(served.get("/plan.json", **{**USUAL, "model": name}).text)
    below = json.loads(served.get("/plan.json", **{**USUAL, "model": "model"}).text)
    assert dropped["model"] == below["model"]
    assert dropped["candidates"] == below["candidates"]
    assert dropped["job"]["model"] == "config.json", "where it lies is nobody's concern"
    assert copied(served.get("/", **{**USUAL, "model": name})).startswith("model: config.json\n")
    broken = served.ask("POST", "/config", body=b'{"model_type": "llama", "hidden_size": -1}')
    assert broken.status == 400
    assert "hidden_size is -1; expected a whole number" in broken.text


def test_runs_are_listed_and_looked_at_and_nothing_is_written(served: Served) -> None:
    before = {path: path.stat().st_mtime_ns for path in sorted(served.folder.rglob("*"))}
    assert {"runs%2Ffirst", "runs%2Flive"} == set(re.findall(r'href="/run\?name=([^"]+)"', served.get("/runs").text))
    finished = served.get("/run", name="runs/first")
    assert finished.status == 200
    for words in ("Finished at step 50", "Forecast and measurement", "data-curve", "outcome finished", "Ended; at "):
        assert words in finished.text
    assert "data-poll" not in finished.text
    assert "fsdp fits on 2x H100-SXM" in served.get("/run", name="runs/first", show="plan").text
    beside = unescape(served.get("/compare", ("run", "runs/first"), ("run", "runs/live")).text)
    assert 'runs/first has method = "lora", and runs/live has "full": different jobs, so that step times' in beside
    assert {path: path.stat().st_mtime_ns for path in sorted(served.folder.rglob("*"))} == before


def test_a_live_run_is_told_anew_where_something_has_changed(served: Served) -> None:
    live = served.get("/run", name="runs/live")
    assert 'data-poll="2000"' in live.text
    assert "What this report lacks" not in live.text, "what is not written yet is no gap"
    assert "step 5 of 50" in live.text
    both = {"path": "/compare?run=runs/first&run=runs/live", "method": "GET"}
    beside = served.ask(**both)
    assert 'data-poll="2000"' in beside.text
    assert served.ask(**both, headers={"If-None-Match": beside.headers["etag"]}).status == 304
    tag = live.headers["etag"]
    again = served.ask("GET", "/run?name=runs/live", headers={"If-None-Match": tag})
    assert (again.status, again.text) == (304, "")
    maker = RunMaker(root=served.folder / "runs/live", job=make_job(method="full"))
    maker.stepped(range(6, 8))
    changed = served.ask("GET", "/run?name=runs/live", headers={"If-None-Match": tag})
    assert changed.status == 200
    assert "step 7 of 50" in changed.text
    maker.stepped(range(8, 51)).measured().ended()
    assert "data-poll" not in served.get("/run", name="runs/live").text
    assert "All have ended" in served.ask(**both, headers={"If-None-Match": beside.headers["etag"]}).text


def test_a_run_that_a_process_holds_is_running(served: Served) -> None:
    def told() -> tuple[str, str]:
        line = re.search(r'href="/run\?name=runs%2Fheld">.*?<span class="badge (\w+)">', served.get("/runs").text)
        shown = served.get("/run", name="runs/held").text
        page = re.search(r'<span class="badge (\w+)">\w+</span> (.*) <span data-age', shown)
        assert line
        assert page
        assert line[1] == page[1]
        return page[1], page[2]

    maker = RunMaker(root=served.folder / "runs/held", job=make_job(method="full"))
    maker.planned().prepared().started().stepped(range(1, 6))
    assert told()[0] == "unfinished"
    tag = served.get("/run", name="runs/held").headers["etag"]
    with locked(maker.run):
        assert told() == ("running", "Running: step 5 of 50, phase training. About 1 min 30 s left.")
        assert served.get("/run", name="runs/held").headers["etag"] != tag
        maker.ended("stopped")
        assert told()[0] == "running"
    assert told()[0] == "stopped"


def test_the_toy_is_stepped_through_under_every_strategy_on_two_to_eight_gpus_and_so_is_a_plan(served: Served) -> None:
    for name in ("mp", "ddp", "fsdp", "tp", "pp"):
        page = served.get("/learn", under=name)
        count = int(re.search(r"Moment 1 of (\d+)", page.text)[1])
        assert count >= 10
        assert f"Moment {count} of {count}" in served.get("/learn", under=name, at=str(count)).text
    assert "Moment 1 of" in served.get("/learn", under="fsdp", at="-5").text
    assert "Moment 1 of" in served.get("/learn", under="nonsense", at="x").text
    assert "Moment 19 of 19" in served.get("/learn", under="fsdp", at="9999").text
    for size in (2, 8):
        page = served.get("/learn", under="fsdp", gpus=str(size)).text
        assert re.findall(r"<h2>GPU (\d+)</h2>", page) == [str(rank) for rank in range(size)]
        assert f"gpus={size}&amp;at=2" in page, "the next moment is of as many"
    assert served.get("/learn", gpus="99").text == served.get("/learn", gpus="3").text
    link = re.search(r'href="(/learn\?under=own[^"]*)"', served.get("/", **USUAL).text)
    assert link
    page = served.ask("GET", unescape(link[1])).text
    assert "Your plan: tinyllama-1.1b, lora, on 2x RTX-4090" in page
    count = int(re.search(r"Moment 1 of (\d+)", page)[1])
    following = unescape(re.search(r'id="next"[^>]*href="([^"]*)"', page)[1])
    assert f"Moment 2 of {count}" in served.ask("GET", following).text
    nothing = served.get("/learn", under="own", **{**USUAL, "model": "llama-3.1-70b", "method": "full"})
    assert "That plan has no step to show" in nothing.text


def test_no_page_has_inline_scripts_or_styles_or_loads_from_elsewhere(served: Served) -> None:
    pages = [served.get("/", **USUAL), served.get("/runs"), served.get("/run", name="runs/first"), served.get("/learn")]
    for page in pages:
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]*(?: src=\"/static/|type=\"application/json\"))", page.text)
        assert not re.search(r"<style|\sstyle=|\son\w+=", page.text)
        assert re.findall(r'(?:src|href)="(?!/|#)', page.text) == []


def test_every_wrong_field_is_named_and_the_hub_asked_only_when_that_is_wished(served: Served) -> None:
    asked = {"model": "llama-3.1-8", "method": "lora", "hardware": "2x RTX-4900", "precision": "bf17", "micro": "many"}
    page = served.get("/", **asked)
    assert page.status == 400
    assert "near it are llama-3.1-8b" in wrong(page, "model")
    assert "many" in wrong(page, "micro")
    for known in (page, served.get("/", **asked | {"model": "tinyllama-1.1b"})):
        assert "RTX-4090" in wrong(known, "hardware")
        assert "bf16" in wrong(known, "precision")
    asked = {**USUAL, "model": "somebody/some-model"}
    assert "no model of the catalogue" in wrong(served.get("/", **asked), "model")
    # The server of the tests is offline, and says so once it looks.
    assert "HF_HUB_OFFLINE is set" in wrong(served.get("/", **asked, hub="1"), "model")


def test_folded_fields_and_the_network_are_those_of_the_command_line(served: Served, shardwise: Shardwise) -> None:
    folded = {"precision": "bf16", "optimizer": "adamw_8bit", "recompute": "full", "packing": "true", "micro": "2"}
    page, _, command = answered(served, shardwise, **USUAL, **folded)
    assert '<details class="more trains" open>' in page.text
    assert '<details class="more trains" open>' not in served.get("/", **USUAL).text
    assert "data.packing=true" in command
    card = r'id="pick-\d+" data-swap href="([^"]*)"><strong>L40S</strong> [0-9.]+ GiB · \$[^<]*<span>\d+ a machine, '
    pick = re.search(card, page.text)
    assert pick, "a card has a GPU's memory, price and shape"
    assert "hardware=2x+L40S" in pick[1], "as many of another"
    question = {**USUAL, "hardware": "2 x 2x L40S", "network": "10"}
    assert "2 x 2x L40S @ 10 Gb/s" in answered(served, shardwise, **question)[2]
    assert "which is one machine" in wrong(served.get("/", **USUAL, network="10"), "hardware")


def test_a_recipe_fills_the_fields_and_those_without_are_named(served: Served, tmp_path: Any) -> None:
    page = served.get("/", **USUAL).text
    links = dict(re.findall(r'id="recipe-([\w-]+)" data-swap href="/\?([^"]*)"', page))
    left_out = {"mixture-24gb", "preferences"}
    assert links.keys() == api.recipes().keys() - left_out
    assert ", ".join(sorted(left_out)) in page
    for name in ("full-1b-one-card", "pretrain-packed", "qlora-t4"):
        job = tmp_path / f"{name}.yaml"
        job.write_text(api.recipes()[name])
        asked = {**dict(parse_qsl(unescape(links[name]))), "rows": ""}
        best = json.loads(served.get("/plan.json", **asked).text)["candidates"][0]
        assert best == json.loads(json.dumps(api.plan(job).to_json()))["candidates"][0]


@pytest.mark.parametrize("changed", [{}, {"model": "llama-3.1-70b", "rows": "9", "solve": "gpus"}, {"hardware": "any"}])
def test_generating_is_answered_as_the_command_line_answers(served, shardwise, changed) -> None:
    question = {"task": "generate", **USUAL, **changed}
    page, said, command = answered(served, shardwise, **question)
    assert command[-2:] == ["--task", "generate"]
    assert ("Generating fits on" in page.text) == said["asked"]["fits"]
    for size in (said["weight_bytes"], said["asked"]["cache_bytes"], *(one["total_bytes"] for one in said["table"])):
        assert format_bytes(size) in page.text
    remedies = re.findall(r'id="remedy-\d"[^>]*>([^<]*)<', page.text)
    assert remedies == ([] if said["asked"]["fits"] else ["Try QLoRA", "Which GPUs?"])
    refused = served.get("/", **{**question, "task": "sing"})
    assert "'sing' is no task; expected train or generate" in wrong(refused, "task")
