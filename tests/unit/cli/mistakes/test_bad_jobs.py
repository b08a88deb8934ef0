"""Job files with mistakes: exit 2, a sentence for each with its place, and never a traceback."""

import re

import pytest

from shardwise.cli.main import main
from shardwise.errors import JobError

GOOD = "model: tinyllama-1.1b\ndata: {path: rows.jsonl}\n"

#: A job file -> the line of its first mistake and a word of the message (more in tests/unit/spec).
BAD: list[tuple[str, int, str]] = [
    ("model: 7\n", 1, "expected text"),
    (GOOD + "train:\n  seed: 99999999999999999999\n", 4, "train.seed"),
    (GOOD + "train:\n  report_to: [excel]\n", 4, "train.report_to"),
    (GOOD + "layout: []\n", 3, "layout is []; expected a list of 1 or more"),
    (GOOD + "hardware: 4x Wonder-9000\n", 3, "Wonder-9000"),
    (GOOD + "hardware: 100001x H100-SXM\n", 3, "at most 100000 can be planned for"),
    (GOOD + "goal: best\n", 3, "fewest-gpus"),
    ("model: no-such-model-anywhere\ndata: {path: d}\n", 1, "no-such-model-anywhere"),
]


@pytest.mark.parametrize("verb", ["plan", "train"])
@pytest.mark.parametrize(("text", "line", "words"), BAD, ids=[f"{i}-{words}" for i, (_, _, words) in enumerate(BAD)])
def test_every_mistake_is_a_sentence_at_its_place(shardwise, tmp_path, verb, text, line, words) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(text, encoding="utf-8")
    sets = ("--set", f"output_dir={tmp_path / 'run'}") if text.startswith(GOOD) else ()
    said = shardwise.refused(verb, job, *sets)
    assert all(re.match(rf"error: {re.escape(str(job))}:\d+: |error: --set ", found) for found in said.splitlines())
    assert f"{job}:{line}: " in said and words in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("hardware=4x Wonder-9000", "Wonder-9000"),
        ("model=no-such-model-anywhere", "no-such-model-anywhere"),
        ("layout.tp=0", "layout.tp"),
        ("train=5", "expected keys below it"),
        ("lora.target_modules=[q_proj, embed_tokens]", "lora.target_modules names embed_tokens; of "),
    ],
)
def test_a_wrong_override_is_named_as_it_was_written(shardwise, tmp_path, override, words) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"{GOOD}method: lora\n", encoding="utf-8")
    said = shardwise.refused("plan", job, "--set", override)
    assert f"error: --set {override}: " in said and words in said


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (["--model", "tinyllama-1.1b", "--method", "magic"], "error: --method magic: "),
        (["--model", "tinyllama-1.1b", "--hardware", "4x Wonder-9000"], "error: --hardware 4x Wonder-9000: "),
        (["--model", "no-such-model-anywhere"], "error: --model no-such-model-anywhere: "),
        (["--model", "tinyllama-1.1b", "--max-length", "0"], "error: --max-length 0: "),
        (["--model", "tinyllama-1.1b", "--global-batch-size", "-1"], "error: --global-batch-size -1: "),
        ([], "error: nothing to plan: name a job file, or a model with --model"),
    ],
)
def test_a_wrong_flag_is_named(shardwise, flags, start) -> None:
    assert shardwise.refused("plan", *flags).startswith(start)


def test_a_traceback_is_shown_to_those_who_ask_for_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    with pytest.raises(JobError):
        main(["plan", str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize(
    ("model", "layout", "gpus", "says"),
    [
        ("tinyllama-1.1b", "{pp: 32}", "4 x 8", "32 pipeline stages for 22 layers; use pp: 22 at most"),
        ("tinyllama-1.1b", "tp", 8, "tp = 8 does not divide the model's 4 key-value heads; the largest tp that slices"),
        ("gpt2", "tp", 8, "gpt2 is not sliced by tensor parallel (tp) in this version; the nearest layout that tra"),
    ],
)
def test_a_layout_that_does_not_cut_the_model_is_a_mistake_in_the_job(model, layout, gpus, says, shardwise, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(f"model: {model}\ndata: {{num_rows: 100}}\nhardware: {gpus}x H100-SXM\nlayout: {layout}\n")
    assert f"job.yaml:4: {says}" in shardwise.refused("plan", job)
