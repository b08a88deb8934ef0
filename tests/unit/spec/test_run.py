"""The run directory: whole files appear at once, growing ones are read up to their last line."""

from pathlib import Path

from shardwise.spec import run as files
from tests.refusals import must_refuse, said_by


def test_a_record_that_is_still_being_written_or_no_json_is_left_out(tmp_path: Path) -> None:
    run = files.RunDirectory(tmp_path)
    run.metrics.write_text('nonsense\n[1]\n{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert [record["step"] for record in files.read_metrics(run)] == [1]
    assert files.read_json(run.metrics) is files.read_json(tmp_path / "missing.json") is None
    must_refuse(ValueError, "Out of range float", files.append_line, run.metrics, {"loss": float("nan")})


def test_a_resumed_run_forgets_the_steps_it_takes_again(tmp_path: Path) -> None:
    run = files.RunDirectory(tmp_path)
    for step in (1, 2, 3, 4):
        files.append_line(run.metrics, {"step": step, "loss": 1.0})
    files.forget_steps_after(run, 2)
    files.append_line(run.metrics, {"step": 3, "loss": 2.0})
    assert [(r["step"], r["loss"]) for r in files.read_lines(run.metrics)] == [(1, 1.0), (2, 1.0), (3, 2.0)]
    files.append_line(run.metrics, {"step": 2, "loss": 2.5})  # the later record of a step stands
    assert [record["loss"] for record in files.read_metrics(run)] == [1.0, 2.5, 2.0]


def test_only_committed_checkpoints_count_and_the_newest_comes_first(tmp_path: Path) -> None:
    run = files.RunDirectory(tmp_path)
    for step in (5, 100, 20):
        files.write_json(run.checkpoint(step) / "manifest.json", {})
    run.checkpoint(200).mkdir()
    (tmp_path / "checkpoint-old").mkdir()
    assert files.RunDirectory(Path("my runs/first")).typed == "'my runs/first'"
    assert [step for step, _ in run.checkpoints()] == [100, 20, 5]


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a.txt", "old")
    said_by(UnicodeEncodeError, files.write_text, tmp_path / "a.txt", "\ud800")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
