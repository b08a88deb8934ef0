"""What a report says is what the files say, and what they do not say is named."""

import json
import random
import shutil
import time
from typing import Any

import pytest

from shardwise import api
from shardwise.api.runs.training import TrainResult
from shardwise.cli.train import closing_lines
from shardwise.errors import RunDirectoryError
from shardwise.report.collect import MAX_POINTS, collect, write_report
from shardwise.report.contents import Check, Comparison, Report
from shardwise.report.pages.run_page import report_html
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import RunDirectory, append_line, read_json, write_json, write_text
from tests.refusals import must_refuse
from tests.speed import quiet_seconds
from tests.unit.cli.mistakes.odd import spoiled
from tests.unit.report import runs
from tests.unit.report.runs import GIB, RunMaker, finished_run, make_job, make_plan, mfu_of, record


def row(report: Report, what: str) -> Comparison:
    found = report.comparison(what)
    assert found is not None
    return found


def check_of(report: Report, name: str) -> Check:
    return next(check for check in report.checks if check.name.startswith(name))


def test_figures_stand_beside_their_forecasts(run) -> None:
    report = collect(run)
    rate, percent = runs.TOKENS_PER_STEP / runs.STEP_SECONDS, pytest.approx
    expected = {"peak memory": (20 * GIB, percent(5.0)), "weights": (10 * GIB, 0), "other": (6 * GIB, percent(100 / 6))}
    expected |= {"context": (None, None), "step time": (runs.STEP_SECONDS, percent(10.0))}
    expected |= {"throughput": (rate, percent(-10.0)), "total time": (runs.TRAIN_SECONDS, percent(-20.0))}
    assert {what: (row(report, what).measured, row(report, what).error_percent) for what in expected} == expected
    forecasts = {what: row(report, what).forecast for what in ("peak memory", "other", "context")}
    assert forecasts == {"peak memory": 21 * GIB, "other": 7 * GIB, "context": GIB}
    assert row(report, "MFU").measured == pytest.approx(mfu_of(make_job(), rate=rate, world_size=2))
    assert row(report, "GPU utilisation").measured == pytest.approx(0.9)
    assert [check.passed for check in report.checks] == [True] * len(report.checks)
    assert report.gaps == ()
    assert (report.skipped_steps, report.loss_scale) == (None, None)
    assert not any("float16" in note for note in report.notes)


def test_the_summary_names_what_was_asked_and_what_ran(run) -> None:
    write_json(run.environment, {"threads": 1, "jobs": 0, "pinned": True, "shared": False})
    report = collect(run)
    environment = {fact.name: fact.value for fact in report.environment}
    assert environment == {"threads": "1", "jobs": "0", "pinned": "yes", "shared": "no"}, "numbers are no booleans"
    assert report.headline == "example/tiny-llama, lora, fsdp on 2x H100-SXM"
    assert report.outcome.sentence == "Finished at step 50 of 50."
    assert report.model_size.endswith("12.3k trained (8.04 %)")
    assert report.tokens == 50 * runs.TOKENS_PER_STEP
    facts = {fact.name: fact.value for fact in (*report.dtypes, *report.execution)}
    assert (facts["compute"], facts["layout"]) == ("bfloat16", "dp_shard 2")
    assert [(split.split, split.counts["num_rows"]) for split in report.data] == [("train", 1001), ("eval", 20)]
    assert report.data[0].counts == runs.COUNTS
    assert {entry.name: entry.num_bytes for entry in report.files}["final/"] > len("weights")
    assert report.examples[0].pieces == (("user: what is 2+2?\n", False), ("4", True))


@pytest.mark.parametrize(
    ("key", "factor", "check"),
    [("tokens_per_second", 1.02, "tokens/s"), ("mfu", 1.5, "MFU"), ("step", 2, "every step")],
)
def test_figures_that_do_not_recompute_are_found(maker, key, factor, check) -> None:
    for step in range(1, 11):
        figures = record(step, job=maker.job)
        append_line(maker.run.metrics, {**figures, key: figures[key] * factor})
    assert check_of(collect(maker.run), check).passed is False


def test_processes_that_did_not_run_are_found_and_the_worst_rank_is_compared(run) -> None:
    measured, environment = read_json(run.measured) or {}, read_json(run.environment) or {}
    measured["ranks"][1] |= {"peak_memory_bytes": 30 * GIB, "other": 14 * GIB}
    write_json(run.measured, measured)
    write_json(run.environment, {**environment, "world_size": 1})
    report = collect(run)
    assert check_of(report, "as many processes").passed is False
    assert report.memory.worst_rank == 1, "the worst is the one that is compared"
    assert [row(report, what).measured for what in ("peak memory", "other")] == [30 * GIB, 14 * GIB]


def test_a_running_run_is_reported_as_far_as_it_went(maker) -> None:
    begun = collect(maker.stepped(range(1, 3)).run)
    assert row(begun, "step time").measured == 9.0, "of warm-up steps, where there are no others"
    report = collect(maker.stepped(range(3, 11)).run)
    assert (report.outcome.state, report.outcome.step, report.outcome.phase) == ("unfinished", 10, "training")
    assert [gap.file for gap in report.gaps] == ["measured.json"]
    measured = [row(report, what).measured for what in ("peak memory", "weights", "total time")]
    assert measured == [20 * GIB, None, None], "metrics.jsonl has seen the peak already"


def test_a_stopped_run_names_its_signal_and_claims_no_total_time(maker) -> None:
    report = collect(maker.stepped(range(1, 21)).measured("stopped").ended("stopped", signal=15, step=20).run)
    assert (report.outcome.state, report.outcome.signal) == ("stopped", "SIGTERM")
    assert row(report, "total time").measured is None
    assert collect(maker.stepped(range(21, 23)).run).outcome.state == "unfinished", "it goes on"


OTHER = Execution(layout=Layout(tp=2), micro_batch_size=2, gradient_accumulation_steps=8)
OF = {"execution": OTHER}
THREE = [(1, OF), (21, {}), (31, {})]


@pytest.mark.parametrize(
    ("starts", "num_steps", "note"),
    [
        ([(11, {})], 50, "median of steps 14 to 50 with these settings"),
        ([(1, {"hardware": "2x L4"}), (31, {})], 50, "median of steps 34 to 50 with these settings"),
        ([(1, {}), (4, OF), (21, {})], 23, "median of 6 steps with these settings from 1 to 23, which are all warm-up"),
        (THREE, 50, "median of 24 steps with these settings from 24 to 50, after the warm-up of each start"),
    ],
)
def test_figures_are_of_the_layout_that_is_named_and_each_start_warms_up(starts, num_steps, note, tmp_path) -> None:
    of_pairs = make_job(objective="dpo")
    maker = RunMaker(root=tmp_path / "run", num_steps=num_steps, job=of_pairs).planned().prepared().started()
    for first_step, noted in starts:
        maker.began(first_step, **noted)
    lines = [record(step, job=maker.job) for step in range(1, num_steps + 1)]
    slow = runs.TOKENS_PER_STEP / 3.0
    for line in lines[: starts[-1][0] - 1]:
        line |= {"step_seconds": 3.0, "tokens_per_second": slow, "mfu": mfu_of(maker.job, rate=slow, world_size=2)}
    maker.run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = collect(maker.measured().ended().run)
    mfu = check_of(report, "MFU = model FLOPs")
    assert mfu.passed
    assert ("; of the last start; recomputed" in mfu.detail) is (len(starts) > 1)
    step = row(report, "step time")
    assert (step.note, step.measured) == (note, runs.STEP_SECONDS if num_steps == 50 else 2.5)
    if len(starts) == 3 and num_steps == 50:
        rate = 24 * runs.TOKENS_PER_STEP / (7 * 3.0 + 17 * 2.0)
        assert row(report, "throughput").measured == pytest.approx(rate)
        assert row(report, "MFU").measured == pytest.approx(mfu_of(maker.job, rate=rate, world_size=2))
    assert row(report, "weights").measured is None, "nobody knows of which start"
    assert row(report, "total time").note.endswith("in steps, not all with these settings")


def test_damaged_starts_are_named_and_none_is_believed(maker) -> None:
    run = maker.began(1, OTHER).began(11).stepped().measured().ended().run
    for damage in (run.starts.read_bytes()[:-9] + b"\n", b"\xff\xfe\n", b'{"first_step": "x"}\n'):
        run.starts.write_bytes(damage)
        report = collect(run)
        (gap,) = report.gaps
        assert gap.file == "logs/starts.jsonl"
        assert gap.reason.startswith("cannot be read whole; steps of several layouts")
        assert row(report, "step time").note == "median of steps 4 to 50"


def test_processes_are_not_counted_against_a_plan_that_has_not_begun(tmp_path) -> None:
    maker = RunMaker(root=tmp_path / "run", world_size=4).planned().started().began(1, OTHER).stepped(range(1, 9))
    write_json(maker.run.plan, make_plan(maker.job).to_json())
    check = check_of(collect(maker.run), "as many processes")
    assert (check.passed, check.detail) == (None, "no start with this plan has begun to train yet")


def test_what_an_earlier_start_measured_under_another_layout_is_not_this_ones(maker) -> None:
    maker.began(1, OTHER).stepped().measured("stopped", execution=OTHER).began(51).ended()
    report = collect(maker.run)
    for what in ("peak memory", "weights", "step time", "GPU utilisation"):
        assert row(report, what).measured is None
    assert row(report, "peak memory").forecast is not None
    assert row(report, "step time").note == "no step was taken with these settings"
    assert row(report, "total time").note == "2 min 01 s in steps, not all with these settings"
    (gap,) = report.gaps
    assert gap.file == "measured.json"
    assert gap.reason.startswith("is of an earlier start with other settings (tp); memory by part and total time")


def test_what_an_earlier_start_measured_under_the_same_layout_stands(maker) -> None:
    ran = make_plan(maker.job).candidates[0].execution
    report = collect(maker.began(1).stepped().measured("stopped", execution=ran).began(51).ended().run)
    assert row(report, "weights").measured == 10 * GIB
    assert row(report, "step time").note == "median of steps 4 to 50"
    assert row(report, "total time").measured == 3 * 9.0 + 47 * runs.STEP_SECONDS, "the time of all its attempts"
    assert (report.gaps, report.resumed) == ((), True)


def test_a_failed_run_names_the_first_cause_of_its_last_attempt(maker) -> None:
    maker.stepped(range(1, 6))
    now = time.time()
    cause = {"phase": "training (step 6)", "error": "GuardError", "message": "loss is NaN", "file": "a.py", "line": 7}
    write_json(maker.run.rank_failure(0), {**cause, "time": now + 2, "rank": 0, "message": "connection closed"})
    write_json(maker.run.rank_failure(1), {**cause, "time": now + 1, "rank": 1})
    write_json(maker.run.rank_failure(2), {**cause, "time": 1.0, "rank": 2, "message": "of an earlier attempt"})
    outcome = collect(maker.run).outcome
    assert outcome.state == "failed"
    assert outcome.failure == "rank 1, phase training (step 6): GuardError: loss is NaN (a.py:7)"


FILES = ["plan.json", "resolved.yaml", "metrics.jsonl", "measured.json", "data.json", "environment.json"]


#: A file that is gone, or holds something else; lines of metrics have a test of their own.
FAULTS: list[tuple[str, bytes | None]] = [(name, None) for name in FILES]
CONTENTS = (b"", b"{", b"\xff\xfe\x00", b"[1]\n")
FAULTS += [(name, content) for name in FILES if name != "metrics.jsonl" for content in CONTENTS]


@pytest.mark.parametrize(("name", "damage"), FAULTS)
def test_a_missing_or_damaged_file_is_named_and_the_rest_is_reported(run, name, damage) -> None:
    (run.root / name).unlink()
    if damage is not None:
        (run.root / name).write_bytes(damage)
    report = collect(run)
    write_report(report, run)
    assert [gap.file for gap in report.gaps] == [name]
    assert report.gaps[0].reason.startswith("is missing; ") == (damage is None)
    if (name, damage) == ("measured.json", None):
        assert row(report, "total time").note == "2 min 01 s in recorded steps; loading was not timed"


def test_a_finished_run_whose_result_is_damaged_says_so(run) -> None:
    (run.final / "model.safetensors").write_bytes(b"wEights")
    changed = collect(run)
    shutil.rmtree(run.final)
    for report, words in (
        (changed, "model.safetensors is not what was written"),
        (collect(run), "is missing; the run had finished, and its result was there"),
    ):
        assert report.outcome.state == "finished"
        (gap,) = report.gaps
        assert gap.file == "final/"
        assert gap.reason.startswith(words)
        assert words in report_html(report)


def test_a_run_without_its_logs_says_what_is_lost_with_them(run) -> None:
    shutil.rmtree(run.logs)
    report = collect(run)
    (gap,) = report.gaps
    lost = "how the run ended, its phases and what its ranks wrote are not known"
    assert (gap.file, gap.reason) == ("logs/", f"is missing; {lost}")
    assert lost in report_html(report)


def test_lines_of_metrics_that_are_no_records_are_counted_and_left_out(run) -> None:
    whole = run.metrics.read_bytes()
    run.metrics.write_bytes(whole + b"{\n[1]\n\n" + b'{"step": 51, "lo')
    report = collect(run)
    assert report.outcome.step == 50
    (gap,) = report.gaps
    lost = "the figures of their steps are not shown"
    assert gap.reason == f"3 of its 53 lines cannot be read (the last is cut off); {lost}"
    run.metrics.write_bytes(whole[:-9])
    report = collect(run)
    assert report.outcome.step == 49
    assert report.gaps[0].reason == f"1 of its 50 lines cannot be read (the last is cut off); {lost}"
    run.metrics.write_bytes(whole + b"{\n[1]\n\n")
    assert collect(run).gaps[0].reason == f"2 of its 52 lines cannot be read; {lost}"
    run.metrics.write_bytes(b"garbage\n" * 12)
    (gap,) = collect(run).gaps
    assert gap.reason == "12 of its 12 lines cannot be read; no optimizer step is recorded"
    run.metrics.write_bytes(whole + b"\xff\n")
    assert [gap.file for gap in collect(run).gaps] == ["metrics.jsonl"]


@pytest.mark.parametrize(("name", "found"), [("nowhere", "no such folder"), ("file", "is a file"), (".", "none of")])
def test_a_folder_that_is_no_run_directory_is_refused_with_a_sentence(tmp_path, name, found) -> None:
    (tmp_path / "file").write_text("x")
    must_refuse(RunDirectoryError, found, collect, RunDirectory(tmp_path / name))


def test_a_plan_that_chose_nothing_or_something_impossible_is_no_forecast(run) -> None:
    plan = make_plan(make_job()).to_json()
    write_json(run.plan, {**plan, "chosen": None})
    assert row(collect(run), "peak memory").forecast is None
    write_json(run.plan, {**plan, "chosen": 7})
    assert "chosen is 7; expected a place among the 1 candidates" in collect(run).gaps[0].reason
    plan["candidates"][0]["layout"]["zero_stage"] = None
    write_json(run.plan, plan)
    assert "candidates.0.layout.zero_stage is None; expected 1, 2 or 3" in collect(run).gaps[0].reason


SPOILERS: list[Any] = [None, "x\ud800\x1b[31m<b>", -1, 2.5, 10**400, 1e308, True, [], {}, [[]], {"a": {"b": []}}]


@pytest.mark.parametrize("name", [*(file for file in FILES if file != "metrics.jsonl"), "logs/outcome.json"])
def test_no_spoiled_value_in_any_file_is_a_traceback_or_breaks_the_report(tmp_path, name) -> None:
    run = finished_run(tmp_path / "run", num_steps=5)
    whole, dice = json.loads((run.root / name).read_text()), random.Random(20_26)
    for _ in range(40):
        (run.root / name).write_text(json.dumps(spoiled(whole, dice, odd=SPOILERS)))
        write_report(collect(run), run)
        assert read_json(run.report_json) is not None


def test_spoiled_metrics_are_left_out_and_never_drawn(maker) -> None:
    dice = random.Random(7)
    for step in range(1, 60):
        line = json.dumps(spoiled(record(step, job=maker.job), dice, odd=SPOILERS)) + "\n"
        with (maker.root / "metrics.jsonl").open("a") as file:
            file.write(line + 'not json\n[1]\n{"step": true, "loss": 1.0}\n{"step": 3, "loss": NaN}\n')
    write_report(collect(maker.run), maker.run)
    page = maker.run.report_html.read_text().split("<script>")[0]  # what follows are the scripts
    assert "nan" not in page.lower()
    assert "inf" not in page.lower()


def test_report_json_is_whole_and_states_each_error(run) -> None:
    write_report(collect(run), run)
    written = read_json(run.report_json)
    assert written["version"] == 1
    by_name = {entry["what"]: entry for entry in written["comparisons"]}
    assert by_name["other"]["error_percent"] == pytest.approx(100 / 6)
    assert by_name["context"]["measured"] is None
    assert written["memory"]["ranks"][0]["measured_parts"] == runs.MEASURED_PARTS
    run.report_html.unlink()
    run.report_html.mkdir()
    must_refuse(RunDirectoryError, "the report cannot be written", write_report, collect(run), run)
    made = api.report(run.root)
    assert (made.gaps[-1].file, "the report cannot be written" in made.gaps[-1].reason) == ("report.html", True)
    said = closing_lines(TrainResult(run=run, outcome="finished", step=2, report=made))
    assert any(line.startswith("  report   is missing: ") for line in said), said
    used = said[said.index("elsewhere:") :]
    assert used[1].startswith("  vllm serve ") and "before publishing:" in used


@pytest.mark.parametrize("steps", [10_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timed])])
def test_many_steps_are_reported_within_seconds_and_thinned(tmp_path, steps) -> None:
    maker = RunMaker(root=tmp_path / "run", num_steps=steps).planned().prepared().started()
    lines = [json.dumps(record(step, job=maker.job)) for step in range(1, steps + 1)]
    write_text(maker.run.metrics, "\n".join(lines) + "\n")
    most = 6e-5 * steps
    assert quiet_seconds(lambda: write_report(collect(maker.run), maker.run), limit=most) < most, "a third of it"
    loss = collect(maker.run).curves["loss"]
    assert (len(loss.points), loss.num_recorded) == (MAX_POINTS, steps)
    assert (loss.points[0][0], loss.points[-1][0]) == (1, steps)
    assert maker.run.report_html.stat().st_size < 400_000


@pytest.mark.parametrize(("skipped", "left"), [((1, 2, 3), "8,192"), ((), "65,536")])
def test_steps_that_float16_skipped_are_counted_with_the_last_scale(skipped, left, maker) -> None:
    maker.num_steps = 8
    for step in range(1, 9):
        scale = 65536 / 2 ** sum(one < step for one in skipped)
        figures = {**record(step, job=maker.job), "loss_scale": scale, "skipped_step": step in skipped}
        append_line(maker.run.metrics, figures | ({"grad_norm": None} if step in skipped else {}))
    made = collect(maker.run)
    said = "3 of 8 steps were skipped, and count" if skipped else "none was skipped"
    said = f"teps whose gradients overflow float16: {said}; the loss scale of the last step is {left}"
    assert f"s{said}" in made.notes
    figures = (made.to_json()["skipped_steps"], made.to_json()["loss_scale"])
    assert figures == (len(skipped), float(left.replace(",", "")))
    assert said in report_html(made)
    lines = closing_lines(TrainResult(run=maker.run, outcome="finished", step=8, report=made))
    assert ("  skipped  3 steps, whose gradients overflowed float16 (in the report)" in lines) is bool(skipped)
