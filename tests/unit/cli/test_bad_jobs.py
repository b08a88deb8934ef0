"""Job files with mistakes: exit 2, a sentence for each with its place, and never a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shardwise

GOOD = "model: tinyllama-1.1b\ndata: {path: rows.jsonl}\n"

#: A job file -> the line of its first mistake and a word of the message.
BAD: list[tuple[str, int, str]] = [
    ("", 1, "found nothing"),
    ("just words\n", 1, "found a str"),
    ("- model\n", 1, "found a list"),
    ("42\n", 1, "found a int"),
    ("data: {path: rows.jsonl}\n", 1, "the key 'model' is missing"),
    ("model: ''\n", 1, "model is ''"),
    ("model: 7\n", 1, "expected text"),
    ("model: [a]\n", 1, "expected text"),
    (GOOD + "modle: x\n", 3, "did you mean 'model'"),
    (GOOD + "learning_rate: 1\n", 3, "it belongs under train:"),
    (GOOD + "model: y\n", 3, "stands twice"),
    (GOOD + "method: lore\n", 3, "expected full, lora or qlora"),
    (GOOD + "method: full\nlora: {r: 8}\n", 4, "lora: is set but method is full"),
    (GOOD + "train: {learning_rate: '1e-4'}\n", 3, "without quotes"),
    (GOOD + "train: {learning_rate: -1}\n", 3, "greater than 0"),
    (GOOD + "train: {learning_rate: .inf}\n", 3, "train.learning_rate"),
    (GOOD + "train: {learning_rate: .nan}\n", 3, "train.learning_rate"),
    (GOOD + "train:\n  global_batch_size: 2.5\n", 4, "a whole number"),
    (GOOD + "train:\n  global_batch_size: 0\n", 4, "train.global_batch_size is 0"),
    (GOOD + "train:\n  global_batch_size: yes\n", 4, "train.global_batch_size"),
    (GOOD + "train:\n  global_batchsize: 8\n", 4, "did you mean 'global_batch_size'"),
    (GOOD + "train:\n  seed: 99999999999999999999\n", 4, "train.seed"),
    (GOOD + "train:\n  max_steps: -3\n", 4, "train.max_steps"),
    (GOOD + "train:\n  warmup_ratio: 0.1\n  warmup_steps: 5\n", 3, "exclude each other"),
    (GOOD + "train:\n  warmup_ratio: 1.5\n", 4, "train.warmup_ratio"),
    (GOOD + "train:\n  precision: half\n", 4, "expected mixed, bf16, fp16 or fp32, or auto"),
    (GOOD + "train:\n  report_to: [excel]\n", 4, "train.report_to"),
    (GOOD + "train: 5\n", 3, "expected keys below it"),
    (GOOD + "layout: everything\n", 3, "layout is 'everything'"),
    (GOOD + "layout: []\n", 3, "layout is []; expected a list of 1 or more"),
    (GOOD + "layout: {dp_shard: 0}\n", 3, "layout.dp_shard"),
    (GOOD + "layout: {dp_shards: 2}\n", 3, "did you mean 'dp_shard'"),
    (GOOD + "layout: {dp_shard: 4, ep: 2}\n", 3, "write ep: 1"),
    (GOOD + "hardware: 4x Wonder-9000\n", 3, "Wonder-9000"),
    (GOOD + "hardware: 0x H100-SXM\n", 3, "0x H100-SXM"),
    (GOOD + "hardware: 100001x H100-SXM\n", 3, "at most 100000 can be planned for"),
    (GOOD + "hardware: many\n", 3, "hardware"),
    (GOOD + "hardware: 1x 4090\n", 3, "nearest: RTX-4090"),
    (GOOD + "hardware: {gpus: 4}\n", 3, "hardware"),
    (GOOD + "goal: best\n", 3, "fewest-gpus"),
    ("model: no-such-model-anywhere\ndata: {path: d}\n", 1, "no-such-model-anywhere"),
    ("model: m\ndata: {path: d, max_length: 0}\n", 2, "data.max_length"),
    ("model: m\ndata:\n  path:\n    - {path: d, weight: 0}\n", 4, "weight"),
    ("model: m\ndata:\n  eval_path: e\n  eval_fraction: 0.1\n", 2, "exclude each other"),
    ("model: m\ndata: nothing\n", 2, "expected keys below it"),
    ("model: m\n\tdata: x\n", 2, "not valid YAML"),
    ("model: [m\n", 2, "not valid YAML"),
    ("model: 'm\n", 2, "not valid YAML"),
    ("model: &a m\noutput_dir: *a\n", 1, "anchors and aliases"),
    ("model: !!python/object:os.system m\n", 1, "tag"),
    ("? [a, b]\n: c\nmodel: m\n", 1, "plain word"),
    ("version https://git-lfs.github.com/spec/v1\n", 1, "git lfs pull"),
    ("model: m\n---\nmodel: n\n", 2, "not valid YAML"),
    ("model: m\nlora: " + "[" * 200 + "]" * 200 + "\nmethod: lora\n", 2, "nested deeper"),
]


@pytest.mark.parametrize("verb", ["plan", "train"])
@pytest.mark.parametrize(("text", "line", "words"), BAD, ids=[f"{i}-{words}" for i, (_, _, words) in enumerate(BAD)])
def test_every_mistake_is_a_sentence_at_its_place(
    shardwise: Shardwise, tmp_path: Path, verb: str, text: str, line: int, words: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(text, encoding="utf-8")
    said = (
        shardwise(verb, job, "--set", f"output_dir={tmp_path / 'run'}")
        if text.startswith(GOOD)
        else shardwise(verb, job)
    )
    assert said.code == 2, said.err
    assert said.out == ""
    assert "Traceback" not in said.err
    lines = said.err.splitlines()
    assert lines, "an error is said"
    assert all(re.match(rf"error: {re.escape(str(job))}:\d+: |error: --set ", found) for found in lines), said.err
    assert f"{job}:{line}: " in said.err
    assert words in said.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.learning_rate", "expected KEY=VALUE"),
        ("=1", "expected KEY=VALUE"),
        ("train..seed=1", "expected KEY=VALUE"),
        ("train.sed=1", "did you mean 'seed'"),
        ("train.seed=one", "a whole number"),
        ("train.seed=[1", "not valid YAML"),
        ("hardware=4x Wonder-9000", "Wonder-9000"),
        ("model=no-such-model-anywhere", "no-such-model-anywhere"),
        ("layout.tp=0", "layout.tp"),
        ("train=5", "expected keys below it"),
        ("train.seed=&a 1", "anchors"),
    ],
)
def test_a_wrong_override_is_named_as_it_was_written(
    shardwise: Shardwise, tmp_path: Path, override: str, words: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(GOOD, encoding="utf-8")
    said = shardwise("plan", job, "--set", override)
    assert said.code == 2
    assert f"error: --set {override}: " in said.err
    assert words in said.err


def test_all_mistakes_of_a_file_are_said_at_once(shardwise: Shardwise, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(GOOD + "method: lore\ntrain:\n  seed: x\n  sede: 1\n", encoding="utf-8")
    said = shardwise("plan", job)
    assert [line.split(": ")[1] for line in said.err.splitlines()] == [f"{job}:{line}" for line in (3, 5, 6)]


@pytest.mark.parametrize("verb", ["plan", "train"])
def test_files_that_cannot_be_read_are_sentences(shardwise: Shardwise, tmp_path: Path, verb: str) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"model: m\ndata: {path: caf\xe9}\n")
    for name, words in (("absent.yaml", "no such file"), (".", "is a folder"), ("latin.yaml", "not UTF-8")):
        said = shardwise(verb, tmp_path / name)
        assert said.code == 2
        assert words in said.err
        assert said.err.startswith(f"error: {tmp_path / name}")


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
def test_a_wrong_flag_is_named(shardwise: Shardwise, flags: list[str], start: str) -> None:
    said = shardwise("plan", *flags)
    assert said.code == 2
    assert said.err.startswith(start)


def test_a_traceback_is_shown_to_those_who_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwise.cli.main import main
    from shardwise.errors import JobError

    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    with pytest.raises(JobError):
        main(["plan", str(tmp_path / "absent.yaml")])


@pytest.mark.parametrize(
    ("layout", "gpus", "says"),
    [
        ("{pp: 32}", 32, "32 pipeline stages for 22 layers; use pp: 22 at most"),
        ("{pp: 16, schedule: interleaved}", 16, "32 pipeline stages for 22 layers; use pp: 11 at most"),
        ("mp", 32, "32 pipeline stages for 22 layers; use pp: 22 at most"),
        ("tp", 8, "tp = 8 does not divide the model's 4 key-value heads; the largest tp that slices it evenly is 4"),
    ],
)
def test_a_layout_that_the_model_cannot_be_cut_into_is_a_mistake_in_the_job(
    layout: str, gpus: int, says: str, shardwise: Shardwise, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"model: tinyllama-1.1b\ndata: {{num_rows: 100}}\nhardware: {gpus}x H100-SXM\nlayout: {layout}\n")
    said = shardwise("plan", job)
    assert said.code == 2
    assert f"job.yaml:4: {says}" in said.err


def test_a_family_that_is_not_sliced_is_told_so_where_its_heads_do_not_come_out_even(
    shardwise: Shardwise, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: gpt2\ndata: {num_rows: 100}\nhardware: 8x H100-SXM\nlayout: tp\n")
    said = shardwise("plan", job)
    assert said.code == 2
    told = "gpt2 is not sliced by tensor parallel (tp) in this version; the nearest layout that trains it: fsdp"
    assert said.err.strip().endswith(f"job.yaml:4: {told}")


def test_a_target_of_one_block_is_refused_where_it_is_written_by_plan_and_train(
    shardwise: Shardwise, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(GOOD + "method: lora\nlora:\n  target_modules: [q_proj, model.layers.7.mlp.down_proj]\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "one"}\n')
    for command in ("plan", "train"):
        said = shardwise(command, job, "--set", f"data.path={rows}", "--set", f"output_dir={tmp_path / 'run'}")
        assert said.code == 2
        assert f"{job}:5: lora.target_modules names model.layers.7.mlp.down_proj; of llama this" in said.err


def test_an_adapter_on_the_embedding_is_refused_where_it_is_written(shardwise: Shardwise, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(GOOD + "method: lora\nlora:\n  target_modules: [q_proj, embed_tokens]\n")
    said = shardwise("plan", job)
    assert said.code == 2
    assert f"{job}:5: lora.target_modules names embed_tokens; of " in said.err
    job.write_text(GOOD + "method: lora\n")
    setting = "lora.target_modules=[q_proj, embed_tokens]"
    assert f"error: --set {setting}: lora.target_modules" in shardwise("plan", job, "--set", setting).err
