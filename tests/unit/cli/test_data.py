"""`shardwise data`, and what plan, page and report say of the rows that it has counted."""

import json

from shardwise.spec.data_facts import DataFacts
from shardwise.spec.run import read_json, write_json
from tests.unit.cli.plan_json import flaws
from tests.unit.report.runs import finished_run
from tests.unit.report.test_html import safe_page


def test_rows_are_shown_in_80_columns_and_a_pipe_gets_no_escape_codes(shardwise, asked, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = shardwise("data", asked(max_length=300, over_long="truncate"))
    assert (said.code, said.err) == (0, "")
    head, _, shown = said.out.partition("rows as the model reads them; «trained» tokens count in the loss:\n")
    assert "\x1b" not in said.out
    assert max(map(len, head.splitlines())) <= 80
    one = " ".join(head.split())
    for words in (
        "tokens 3,", " in 40 sequences; trained: ", "longest 651 tokens", "of 40 rows are longer and are cut to it",
        "template the tokenizer's own", "notes columns that are not read: id",
    ):  # fmt: skip
        assert words in one
    table = [line.split() for line in head.partition("up to here")[2].splitlines() if line.strip()]
    assert sum(int(line[1]) for line in table) == 40
    assert table[-1][2:4] == ["100", "%"]
    assert {line[-1][0] for line in table if int(line[0].partition("-")[0]) > 300} == {"x"}
    assert "x" not in "".join(line[-1] for line in table if int(line[0].partition("-")[0]) <= 300)
    assert "rows.jsonl:2\n<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n«1?<|im_end|>»\n" in shown


def test_json_has_the_same_figures_and_what_takes_refused_rows_is_said_below_them(shardwise, asked) -> None:
    said = shardwise("data", asked(), "--json")
    found = json.loads(said.out)
    assert (said.code, found["version"], found["accepted"]) == (0, 1, True)
    assert (found["train"]["num_rows"], found["lengths"]["longest"]) == (40, 651)
    refused = shardwise("data", asked(), "--json", "--set", "data.max_length=100")
    assert refused.code == 2
    again = json.loads(refused.out)
    assert (again["accepted"], again["lengths"]["num_over"], again["lengths"]["longest"]) == (False, 9, 651)
    assert again["train"]["num_rows"] is None
    said = shardwise("data", asked(max_length=100))
    words = " ".join(said.out.split())
    assert said.code == 2
    refused = "9 (22 %) of 40 rows are longer and are refused (over_long: error). 651 holds all, 525 95 % of the rows;"
    assert f"{refused} or set" in words
    assert "next: " not in said.out
    assert "absent.yaml" in shardwise.refused("data", "absent.yaml")


def test_a_plan_says_what_was_counted_in_its_terminal_its_json_and_its_page(shardwise, asked, tmp_path) -> None:
    path = asked()
    before = shardwise("plan", path)
    assert "`shardwise data` with the same job counts its rows" in " ".join(before.out.split())
    sampled = shardwise.json("plan", path)
    assert (flaws(sampled), sampled["data"]["sampled"], sampled["run"]["num_steps"]) == ([], 32, 10)
    shardwise("data", path)
    page = tmp_path / "plan.html"
    after = " ".join(shardwise("plan", path, "--html", page).out.split())
    for words in ("longest 651 tokens", "memory is for the longest of these rows"):
        assert words in after
        assert words not in before.out
    assert "counts its rows" not in after
    solved = shardwise("plan", path, "--hardware", "1x L4", "--solve", "max_length").out
    assert "memory and time are for rows as long as max_length" in solved
    made = shardwise.json("plan", path)
    assert flaws(made) == []
    assert made["data"]["lengths"]["num_rows"] == 40
    source = page.read_text()
    found = safe_page(source)
    for words in ("Rows by tokens", "longest 651 tokens", "the tokenizer's own", "columns that are not read: id"):
        assert words in found.words
    assert "<mark>1?&lt;|im_end|&gt;</mark>" in source
    assert source.count("up to here") == 2 * len(made["data"]["lengths"]["bins"])
    refused = shardwise("plan", path, "--json", "--set", "data.max_length=100")
    assert flaws(json.loads(refused.out)) == []
    assert "9 rows are longer than max_length (100), which `train` refuses" in refused.out


def test_the_report_says_what_was_counted_in_its_terminal_its_json_and_its_page(shardwise, asked, tmp_path) -> None:
    facts = json.loads(shardwise("data", asked(max_length=300, over_long="truncate"), "--json").out)
    run = finished_run(tmp_path / "finished")
    write_json(run.data, {**facts, "fingerprint": "0" * 64})
    said = " ".join(shardwise("report", run.root).out.split())
    page = safe_page(run.report_html.read_text())
    for words in ("longest 651 tokens", "of 40 rows are longer and are cut to it", "the tokenizer's own"):
        assert words in said
        assert words in page.words
    assert "up to here" in said
    assert "Rows by tokens" in page.words and "longer than max_length, 300" in page.words
    assert page.words.count("rows.jsonl:2") == 1, "examples are shown once"
    assert DataFacts.read(read_json(run.report_json)["rows"]) == DataFacts.read(facts)
    run.report_html.unlink()
    run.report_html.mkdir()  # nobody can write a file there
    said = shardwise("report", run.root).out + shardwise.refused("report", run.root, "--html")
    assert " ".join(said.split()).count("the report cannot be written: Is a directory") == 2 and "page:" not in said
