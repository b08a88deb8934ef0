"""`data`: rows are counted once, by real preparation; plans know them while no file changes."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from shardwise import api
from shardwise.api.learn.pages import plan_as_part
from shardwise.catalog.noted_data import noted_data
from shardwise.data.prepare.prepare import prepare
from shardwise.launch.processes.helpers import ReportedError
from shardwise.spec.data_facts import Lengths
from shardwise.spec.job.file import read_job
from shardwise.spec.plan.file import plan_from_json
from shardwise.spec.run import RunDirectory, write_json
from tests.unit.counting import WORDS, JobMaker
from tests.unit.data.helpers import write_jsonl


def lengths_of(job: Path) -> list[int]:
    """Tokens of each row, by transformers alone."""
    read = read_job(job)
    tokenizer = AutoTokenizer.from_pretrained(read.model)
    rows = [json.loads(line) for line in Path(read.data.path[0].path).read_text().splitlines()]
    return [len(tokenizer.apply_chat_template(row["messages"], return_dict=False)) for row in rows]


def later(path: Path, content: str) -> None:
    path.write_text(content)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def test_what_is_counted_is_what_transformers_alone_counts(asked: JobMaker) -> None:
    path = asked(max_length=100, over_long="truncate")
    facts, expected = api.data(path).facts, lengths_of(path)
    assert facts.lengths.median == np.quantile(expected, 0.5, method="inverted_cdf")
    assert facts.lengths.p95 == np.quantile(expected, 0.95, method="inverted_cdf")
    assert (facts.lengths.longest, facts.lengths.num_rows) == (max(expected), 40)
    assert facts.lengths.num_over == sum(length > 100 for length in expected) > 2
    assert facts.train.num_tokens == sum(min(length, 100) for length in expected) - 100 * facts.train.num_dropped
    assert facts.train.num_dropped + facts.train.num_rows == 40
    assert (facts.template_from, facts.train.sources[0].ignored_columns) == ("tokenizer", ("id",))
    assert [row.where.rpartition(":")[2] for row in facts.preview] == ["1", "2", "3"]
    assert facts.preview[1].text == (
        ("<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\n", False),
        ("1?<|im_end|>", True),
        ("\n", False),
    )


def test_of_several_files_a_row_of_each_is_shown_and_of_a_long_row_both_ends(asked: JobMaker, tmp_path: Path) -> None:
    long = write_jsonl(tmp_path / "long.jsonl", [{"prompt": "why? ", "completion": WORDS * 60}] * 2)
    short = write_jsonl(tmp_path / "short.jsonl", [{"text": "the cat"}] * 3)
    facts = api.data(asked(path=[str(long), str(short)], max_length=4096)).facts
    assert [row.where for row in facts.preview] == [f"{long}:1", f"{short}:1", f"{long}:2"]
    pieces = facts.preview[0].text
    whole = "".join(text for text, _ in pieces)
    assert whole.startswith("<|im_start|>user\nwhy? ") and whole.endswith("on the log<|im_end|>\n")
    left_out = next(text for text, _ in pieces if text.endswith(" tokens] "))
    assert left_out == f" [{facts.train.longest - 512:,} tokens] "
    assert [trained for _, trained in pieces] == [False, True, False, True, False]


def test_rows_that_are_refused_as_too_long_are_counted_all_the_same(asked: JobMaker, capfd) -> None:
    path = asked(max_length=100)
    counted, expected = api.data(path), lengths_of(path)
    assert counted.refusal.exit_code == 2
    over = sum(length > 100 for length in expected)
    assert counted.facts.lengths.num_over == over and counted.facts.lengths.longest == max(expected)
    assert counted.facts.train.num_rows is None, "none was accepted"
    assert len(counted.facts.preview) == 3
    err = capfd.readouterr().err
    assert "rows.jsonl:34: has 273 tokens; max_length is 100: raise max_length, or set over_long" in err
    assert "prepared before" not in err and "columns not used" not in err, "what is counted is said once"
    assert api.data(asked(max_length=max(expected))).refusal is None, "what it says takes all"
    assert api.data(asked(max_length=5, over_long="drop")).facts.lengths.num_over == 40


def test_rows_without_any_that_can_be_read_are_an_error_with_its_line(asked: JobMaker, rows: Path, capfd) -> None:
    rows.write_text('{"messages": 3}\n')
    counted = api.data(asked())
    assert counted.refusal.exit_code == 2 and counted.facts.lengths is None
    assert f"error: {rows}:1: " in capfd.readouterr().err
    with pytest.raises(ReportedError):
        api.data(asked(path=str(rows.with_name("nothing.jsonl"))))
    assert "nothing.jsonl: there is no such file or folder" in capfd.readouterr().err


def test_a_second_look_reads_no_row_until_a_file_is_changed(asked: JobMaker, rows: Path, tmp_path: Path) -> None:
    path = asked()
    first, stat = api.data(path).facts, rows.stat()
    rows.write_bytes(b"#" * stat.st_size)
    os.utime(rows, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert api.data(path) == api.CountedData(facts=first), "of equal size and time, it is not read"
    assert api.plan(path).data == first
    later(rows, '{"text": "the cat"}\n')
    assert api.plan(path).data.sampled is not None, "what is not so any more is not said"
    assert api.data(path).facts.lengths.num_rows == 1
    tokenizer = tmp_path / "model" / "tokenizer.json"
    later(tokenizer, tokenizer.read_text())
    assert api.plan(path).data.sampled is not None, "the tokenizer decides it too"


def test_a_file_that_comes_into_a_folder_and_a_template_that_changes_are_noticed(asked: JobMaker, rows: Path) -> None:
    folder = rows.parent / "folder"
    folder.mkdir()
    rows.rename(folder / "a.jsonl")
    template = rows.with_name("mine.jinja")
    template.write_text("{% for m in messages %}{{ m['content'] }}</s>{% endfor %}")
    path = asked(path=str(folder), chat_template=str(template), train_on="all")
    facts = api.data(path).facts
    assert facts.template_from == str(template)
    assert api.plan(path).data == facts
    shutil.copy(folder / "a.jsonl", folder / "b.jsonl")
    assert api.plan(path).data.sampled is not None and api.data(path).facts.lengths.num_rows == 80
    later(template, template.read_text())
    assert api.plan(path).data.sampled is not None


def test_what_was_prepared_is_what_train_reads_and_a_lost_cache_is_made_again(asked, tmp_path, capsys) -> None:
    path = asked()
    facts, run = api.data(path).facts, RunDirectory(tmp_path / "other")
    write_json(run.resolved, read_job(path).to_json())
    data_json = prepare(run)
    assert "the data was prepared before" in capsys.readouterr().err
    assert data_json["train"]["num_tokens"] == facts.train.num_tokens
    folder = noted_data(read_job(path)).folder
    assert str(folder) == data_json["train"]["folder"]
    shutil.rmtree(folder.parent)
    assert api.data(path).facts == facts
    assert folder.is_dir()


def test_a_plan_knows_steps_and_lengths_once_rows_were_counted(asked: JobMaker, tmp_path: Path) -> None:
    path = asked()
    before = api.plan(path)
    assert before.data.sampled is not None
    api.data(path)
    after, expected = api.plan(path), lengths_of(path)
    assert after.best.time.total_seconds == pytest.approx(10 * after.best.time.step_seconds), "40 rows are 10 steps"
    assert after.best.memory.peak_bytes < before.best.memory.peak_bytes, "no row is as long as it may be"
    assert after.data.train.known == (40, Lengths(longest=max(expected), mean=sum(expected) / 40))
    assert plan_from_json(after.to_json()).data == after.data
    assert "Rows by tokens" in plan_as_part(after), "also where the plan of a run is served"
    api.write_plan(after, tmp_path / "plan.json")
    assert api.plan(tmp_path / "plan.json").data == after.data
    stated = api.plan(path, overrides=["data.num_rows=400"])
    assert stated.best.time.total_seconds == pytest.approx(100 * stated.best.time.step_seconds), "what is stated is so"
    for question in ({"overrides": ["hardware=1x H100-SXM, 1x L4"]}, {"solve": "micro_batch_size"}):
        made = api.plan(path, **question)
        assert made.data == after.data
        assert made.best.time.total_seconds == pytest.approx(10 * made.best.time.step_seconds)


@pytest.mark.parametrize(
    "data",
    [
        {"max_length": 100, "over_long": "drop"},
        {"max_length": 300, "over_long": "truncate"},
        {"max_length": 700, "packing": True},
        {"max_length": 700, "eval_fraction": 0.25},
    ],
)
def test_a_plan_with_other_keys_reckons_from_lengths_what_preparation_then_counts(asked, data) -> None:
    api.data(asked())
    reckoned, counted = api.plan(asked(**data)).data, api.data(asked(**data)).facts
    assert counted.train.num_trained_tokens is not None, "it was prepared"
    assert api.plan(asked(**data)).data == counted
    assert reckoned.lengths == counted.lengths
    (rows, lengths), (true_rows, true_lengths) = reckoned.train.known, counted.train.known
    if data.get("packing"):
        assert rows <= true_rows <= rows + 1, "as if no pack had room left"
        assert (lengths.longest, lengths.mean * rows) == (700, true_lengths.mean * true_rows)
    elif data.get("eval_fraction"):
        assert (rows, lengths.longest) == (true_rows, max(lengths_of(asked())))
    else:
        assert (rows, lengths) == (true_rows, true_lengths)


def test_a_plan_says_that_a_file_is_missing_or_rows_are_refused_and_plans_all_the_same(asked: JobMaker, capfd) -> None:
    path = asked(path="nothing.jsonl", eval_path="hub-name/of-a-set")
    made = api.plan(path)
    assert made.notes == [f"{path}:4: nothing.jsonl: there is no such file or folder; it is planned without its rows"]
    refused = asked(max_length=100)
    api.data(refused)
    (note,) = api.plan(refused).notes
    assert note == "9 rows are longer than max_length (100), which `train` refuses as over_long: error"


def test_a_note_that_another_version_wrote_or_that_is_damaged_is_none(asked: JobMaker, tmp_path: Path) -> None:
    path = asked()
    api.data(path)
    (note,) = (tmp_path / "cache" / "noted").iterdir()
    written = json.loads(note.read_text())
    for other in ({**written, "version": 0}, {**written, "data": {"train": 3}}, {}):
        note.write_text(json.dumps(other))
        assert noted_data(read_job(path)) is None
    note.write_text("{")
    assert noted_data(read_job(path)) is None


def test_a_plan_counts_rows_and_looks_at_the_lengths_of_some(asked: JobMaker, rows: Path) -> None:
    path = asked(over_long="truncate")
    made, expected = api.plan(path), lengths_of(path)
    assert (made.run.rows_from, made.run.num_rows, made.run.num_steps) == ("sampled", 40, 10)
    assert made.data.sampled == 32, "of one small file its first rows are looked at"
    assert made.data.lengths.mean == pytest.approx(sum(expected[:32]) / 32, rel=0.05)
    assert made.run.seconds == 10 * made.best.time.step_seconds
    assert "10 steps of 40 rows (counted, with the lengths of a sample): " in made.run.sentence
    assert plan_from_json(made.to_json()) == made
    listed = api.plan(path, overrides=["hardware=1x L4, 1x L40S"])
    assert listed.best.time == api.plan(path, overrides=[f"hardware={listed.job['hardware']}"]).best.time
    later(rows, rows.read_text() * 2)
    assert api.plan(path).run.num_rows == 80
    path = asked(path={"path": str(rows), "weight": 0.5}, over_long="truncate")
    assert (api.plan(path).run.rows_from, api.plan(path).run.num_rows) == ("sampled", 40)
    api.data(path)
    assert (api.plan(path).run.rows_from, api.plan(path).data.sampled) == ("counted", None)
    assert api.plan(path).run.num_rows == 40


def test_without_a_tokenizer_lengths_are_from_bytes_and_without_rows_it_says_why(asked: JobMaker, rows: Path) -> None:
    path = asked()
    for file in Path(read_job(path).model).glob("tokenizer*"):
        file.unlink()
    made = api.plan(path)
    assert (made.run.rows_from, made.run.num_rows, made.data.sampled) == ("sampled", 40, 0)
    assert made.data.lengths.mean == pytest.approx(rows.stat().st_size / 40 / 4, abs=1)
    assert "from bytes, 4 a token, as the tokenizer is not here" in dict(made.data.lines())["lengths"]
    later(rows, '{"no": "known column"}\n')
    refused = api.plan(path)
    assert refused.run.num_rows is None
    assert any("rows are not counted: " in note for note in refused.data_notes)
    rows.unlink()
    assert any("there is no such file" in note for note in api.plan(path).data_notes)
    stated = "planned for 10 rows, as data.num_rows says; `train` takes those of data.path"
    rises = "all 3 steps are warm-up: the learning rate rises to 22 % of learning_rate"
    left_out = "time and cost leave out evaluation: 2 x (train.eval_steps)"
    overrides = ["train.warmup_steps=9", "train.eval_steps=2", "data.eval_fraction=0.1"]
    assert {stated, rises, left_out} <= {*api.plan(asked(num_rows=10), overrides=overrides).data_notes}
    path = asked(path=[])
    assert api.plan(path).run.sentence == "say data.num_rows for time and cost"
