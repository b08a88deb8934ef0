"""`make bench` calls what is too slow FAIL."""

import subprocess
import sys

from tests.unit.house.tree import ROOT

sys.path[:0] = [str(ROOT / "benchmarks")]
from goals import Found, judged, plain_write  # noqa: E402
from resident import peaks_below  # noqa: E402


def _verdicts(*, toy=False, **changed):
    usual = {"title": "lora, 2 processes", "first_step": 1.1, "tokens": 1.02, "end_seconds": 0.8, "memory": 0.9}
    found = Found(**usual | changed)
    return [line.split()[0] for is_good, line in judged(found, toy=toy) if is_good == line.startswith("PASS")]


def test_each_figure_is_judged_by_the_goals_of_its_kind() -> None:
    assert _verdicts() == _verdicts(toy=True) == ["PASS"] * 3
    assert _verdicts(end_seconds=1.2) == ["PASS"] * 3
    assert _verdicts(end_seconds=1.2, toy=True) == ["FAIL", "PASS", "PASS"]
    assert _verdicts(end_seconds=2.1) == ["FAIL", "PASS", "PASS"]
    assert _verdicts(first_step=1.16) == ["PASS", "FAIL", "PASS"]
    assert _verdicts(tokens=0.99) == ["PASS", "PASS", "FAIL"]
    assert _verdicts(tokens=None) == ["PASS", "PASS"]
    mixture = {"title": "mixture, 1 process", "first_step": 0.99, "tokens": 1.31, "memory": 0.79}
    assert _verdicts(**mixture) == ["PASS"] * 4
    assert _verdicts(**{**mixture, "first_step": 1.01}) == ["PASS", "FAIL", "PASS", "PASS"]
    assert _verdicts(**{**mixture, "title": "mixture, 2 processes"}) == ["PASS", "PASS", "FAIL", "PASS"]
    assert _verdicts(**{**mixture, "memory": 0.81}) == ["PASS", "PASS", "PASS", "FAIL"]
    preferences = {"title": "dpo full, 2 processes", "other": "trl", "first_step": 2.0, "tokens": 1.31, "memory": 0.99}
    assert _verdicts(**preferences) == ["PASS"] * 3
    assert _verdicts(**{**preferences, "tokens": 1.29}) == ["PASS", "FAIL", "PASS"]
    assert _verdicts(**{**preferences, "memory": 1.01}) == ["PASS", "PASS", "FAIL"]


def test_memory_is_that_of_a_process_and_of_those_it_started():
    code = "import subprocess, sys; held = b'x' * 30_000_000; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    inner = "held = b'x' * 60_000_000; print('there', flush=True); input()"
    command = [sys.executable, "-c", code, inner]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        found = sorted(peaks_below(process.pid).values())
        process.communicate("\n")
    assert len(found) == 2
    assert 30_000_000 < found[0] < 60_000_000 < found[1] < 120_000_000


def test_a_line_says_the_figure_and_what_is_wanted():
    found = Found(title="lora, 2 processes", first_step=None, tokens=0.96, end_seconds=0.8, memory=None)
    assert [" ".join(line.split()) for _, line in judged(found, toy=False)] == [
        "PASS lora, 2 processes 0.80 s to the end above a plain write, wanted at most 2.00",
        "FAIL lora, 2 processes 0.96 x Trainer's tokens/s, wanted at least 1.00",
    ]


def test_a_plain_write_is_of_what_the_run_left(tmp_path) -> None:
    assert plain_write(tmp_path) == 0
    assert not any(tmp_path.iterdir())
    final = tmp_path / "run/final"
    final.mkdir(parents=True)
    (final / "model.safetensors").write_bytes(bytes(1000))
    assert plain_write(tmp_path) > 0
    assert (tmp_path / "plain").stat().st_size == 1000
