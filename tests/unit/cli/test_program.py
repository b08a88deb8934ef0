"""The program as a user starts it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise import __version__
from tests.speed import children, quiet_seconds

SHARDWISE = [sys.executable, "-m", "shardwise"]
JOB = "model: tinyllama-1.1b\nhardware: 2x RTX-6000-Ada\ndata: {max_length: 512}\ntrain: {global_batch_size: 16}\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def seconds_of(*arguments: str, limit: float) -> float:
    """Of processors, for one start: the program starts no threads and waits for nothing."""
    command = [*SHARDWISE, *arguments]
    return quiet_seconds(lambda: subprocess.run(command, check=True, capture_output=True), limit=limit, clock=children)


def test_a_plan_is_quick(job: Path) -> None:
    assert seconds_of("--help", limit=0.5) < 0.5 and seconds_of("plan", str(job), limit=1.0) < 1.0


def test_help_names_every_verb(shardwise) -> None:
    said = shardwise("--help")
    assert said.code == 0
    for verb in ("plan", "train", "report", "doctor"):
        assert f"\n  {verb} " in said.out
        assert shardwise(verb, "--help").code == 0
    assert shardwise("--version").out == f"shardwise {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["plan", "--speed"], ["train"], ["report", "absent"], ["train", "a", "b"], ["verify", "absent.yaml"]],
)
def test_a_wrong_command_line_is_bad_input(shardwise, arguments: list[str]) -> None:
    said = shardwise.refused(*arguments)
    assert said and "Traceback" not in said


def test_a_plan_for_a_job_file_and_for_flags_is_the_same_and_written_as_asked(shardwise, job, tmp_path, monkeypatch):
    flags = ["--hardware", "2x RTX-6000-Ada", "--max-length", "256", "--global-batch-size", "4"]
    plan = shardwise.json("plan", job, "--max-length", "256", "--set", "train.global_batch_size=4")
    assert plan == shardwise.json("plan", "--model", "tinyllama-1.1b", *flags)
    assert plan["version"] == 1
    assert (plan["job"]["data"]["max_length"], plan["job"]["train"]["global_batch_size"]) == (256, 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert shardwise("plan", job, "--output=~/plan.json").code == 0  # a `~` that shells leave
    assert json.loads((tmp_path / "plan.json").read_text())["chosen"] is not None
    for output in (job / "plan.json", "."):
        assert "cannot be written" in shardwise.refused("plan", job, "--output", output)


def test_a_pipe_gets_no_escape_codes_and_may_be_left_early(job: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "TERM": "xterm-256color"}
    done = subprocess.run([*SHARDWISE, "plan", str(job)], capture_output=True, check=True, env=environment)
    assert b"\x1b" not in done.stdout and done.stderr == b""
    assert done.stdout.isascii() and b"-> " in done.stdout
    with subprocess.Popen([*SHARDWISE, "plan", str(job)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 0


def test_doctor_says_what_is_here_and_what_is_lacking(shardwise) -> None:
    said = shardwise("doctor")
    assert said.code == 0
    assert all(word in said.out for word in ("python", "torch", "C compiler"))
    found = shardwise.json("doctor")
    assert found["version"] == 1
    assert isinstance(found["can_train"], bool)
    assert all({"severity", "what", "hint"} == set(finding) for finding in found["findings"])


def test_the_names_that_a_refusal_points_to_are_listed(shardwise) -> None:
    assert "nearest known: gpt2" in shardwise("plan", "--model", "gpt-5", "--hardware", "1x L4").err
    for model, hardware, kind in (("zzyzx-q", "1x L4", "models"), ("gpt2", "1x Quux", "gpus")):
        assert f"shardwise plan --list {kind}" in shardwise.refused("plan", "--model", model, "--hardware", hardware)
    models, gpus = shardwise("plan", "--list", "models"), shardwise("plan", "--list", "gpus")
    assert (models.code, gpus.code) == (0, 0)
    assert re.search(r"^ *llama-3\.1-8b +8\.03B parameters +meta-llama/Llama-3\.1-8B *$", models.out, re.MULTILINE)
    assert re.search(r"^ *H100-SXM +79\.6 GiB +\$[0-9.]+ to \$[0-9.]+ an hour *$", gpus.out, re.MULTILINE)
    assert re.search(r"no price known *$", gpus.out, re.MULTILINE)
    assert "there is no such list; write --list models or --list gpus" in shardwise("plan", "--list", "cars").err
